"""The shape of the project: one-way imports, exact pins, shipped configuration, nothing tied to one machine."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache

import pytest

from benchmarks.startup import first_page_modules, import_seconds
from scripts import environment
from scripts.browser import find_browser, starts
from scripts.loading import ROOMS, imported_names, loaded_with
from scripts.lock import normalised, pinned_names
from tests.conftest import ROOT, is_known_probe, is_local

BELOW = {"attn_core": (), "analysis": ("attn_core",), "dashboard": ("attn_core", "analysis")}
"""Rooms that each room may import."""

PLACES = {
    "transformers": "analysis/hf/",
    "onnx": "analysis/conversion.py",
    "matplotlib": "analysis/drawing.py",
    "captum": "analysis/evidence/gradients.py",
    "streamlit": "dashboard/",
    "plotly": "dashboard/charts.py",
    "bertviz": "dashboard/bertviz_view.py",
    "triton": "attn_core/flash/",
    "torchvision": None,
    "onnxruntime": None,
    "requests": None,
}
"""The one file or folder that may import a library; None: nobody."""

LIGHT_MODULES = (
    "analysis",
    "analysis.figure_data",
    "analysis.catalogue",
    "analysis.samples",
    "analysis.images",
    "analysis.words",
    "analysis.scale_curves",
)
HEAVY = {"torch", "transformers", "captum", "onnx", "scipy", "sklearn", "matplotlib", "bertviz"}
"""Libraries that the first page must not wait for."""

FIRST_PAGE = (
    "dashboard/app.py",
    "dashboard/views/text.py",
    "dashboard/views/image.py",
    "dashboard/views/models.py",
    "dashboard/views/scale.py",
)
"""What Streamlit runs; it starts pages by their path, not by an import."""

DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Packages whose import name differs from their name in requirements.txt."""


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def syntax(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def relative(path):
    return path.relative_to(ROOT).as_posix()


def tracked_files():
    """Files that are or would be committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if result.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in result.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room):
    outside = {"attn_core", "analysis", "dashboard", "tests", "scripts", "benchmarks"} - {room, *BELOW[room]}
    wrong = [
        (relative(path), name)
        for path in python_files(room)
        for name in imported_names(syntax(path))
        if name.split(".")[0] in outside
    ]
    assert python_files(room)
    assert wrong == []


@pytest.mark.parametrize("library", PLACES)
def test_each_library_has_one_place(library):
    users = [
        relative(path)
        for path in python_files(*ROOMS)
        if library in {name.split(".")[0] for name in imported_names(syntax(path))}
    ]
    place = PLACES[library]
    assert [user for user in users if place is None or not user.startswith(place)] == []


def test_the_core_needs_torch_alone():
    allowed = sys.stdlib_module_names | {"attn_core", "torch", "numpy", "triton"}
    imported = {
        name.split(".")[0] for path in python_files("attn_core") for name in imported_names(syntax(path))
    }
    assert imported <= allowed


def test_what_is_imported_is_pinned():
    pins = pinned_names(ROOT, files=("requirements.txt",))
    imported = {name.split(".")[0] for path in python_files(*ROOMS) for name in imported_names(syntax(path))}
    foreign = imported - sys.stdlib_module_names - set(ROOMS) - {"triton"}  # triton comes with torch
    assert {normalised(DISTRIBUTIONS.get(name, name)) for name in foreign} <= pins


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_modules_import_without_heavy_libraries(module):
    heavy = HEAVY | {"streamlit", "plotly"}
    code = f"import sys, {module}; print(sorted({heavy!r} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("start", FIRST_PAGE)
def test_pages_load_no_heavy_library(start):
    loaded = loaded_with(ROOT / start)
    heavy = [
        (relative(path), name)
        for path, names in loaded.items()
        for name in names
        if name.split(".")[0] in HEAVY
    ]
    assert heavy == []


@pytest.mark.slow
def test_the_first_page_waits_for_less_than_torch():
    """CPU time of fresh processes, best of three in turn; the goal is 0.5, see benchmarks/RESULTS.md."""
    modules = first_page_modules()
    assert "dashboard.first_paint" in modules
    pairs = [(import_seconds(modules), import_seconds(["torch"])) for _ in range(3)]
    assert not any(page[2] for page, _ in pairs), "torch came along"
    assert min(page[0] for page, _ in pairs) < 0.8 * min(torch[0] for _, torch in pairs)


def test_imports_are_written_in_full():
    short = [
        (relative(path), name)
        for path in python_files(*ROOMS)
        for name in imported_names(syntax(path))
        if name.startswith(".")
    ]
    assert short == []


def test_modules_follow_the_house_rules():
    for path in python_files(*ROOMS, "scripts", "benchmarks"):
        tree = syntax(path)
        if path.name == "__init__.py" and not tree.body:
            continue
        assert ast.get_docstring(tree), f"{relative(path)} has no docstring"
        assert "from __future__ import annotations" in path.read_text(encoding="utf-8") or not any(
            isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body
        ), f"{relative(path)} lacks the annotations import"
        globals_used = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Global)]
        assert globals_used == [], f"{relative(path)} keeps state at module level"


ON_LINUX = r'; platform_system == "Linux" and .*'
"""The one condition a pin may have: Triton is built for Linux alone."""


def test_requirements_are_exact_pins():
    for file_name in ("requirements.txt", "requirements-dev.txt", "constraints.txt"):
        lines = (ROOT / file_name).read_text(encoding="utf-8").splitlines()
        for line in filter(None, lines):
            allowed = rf"#.*|-r requirements\.txt|[\w.-]+==[\w.]+({ON_LINUX})?"
            assert re.fullmatch(allowed, line), f"{file_name}: {line}"
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    constrained = {normalised(name) for name in re.findall(r"^([\w.-]+)==", constraints, flags=re.MULTILINE)}
    assert constrained
    assert constrained.isdisjoint(pinned_names(ROOT)), "a pin stands in two files; run `make lock`"


def test_installed_versions_are_the_pinned_ones():
    from importlib.metadata import version

    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE)
    different = {name: found for name, wanted in pins if (found := version(name).partition("+")[0]) != wanted}
    assert different == {}


def test_streamlit_configuration():
    with (ROOT / ".streamlit" / "config.toml").open("rb") as file:
        config = tomllib.load(file)
    assert config["server"] == {
        "headless": True,
        "address": "127.0.0.1",
        "port": 8501,
        "maxUploadSize": 25,
        "maxMessageSize": 64,
        "fileWatcherType": "none",
        "disconnectedSessionTTL": 120,
        "showEmailPrompt": False,
    }
    assert config["browser"]["gatherUsageStats"] is False
    assert config["client"] == {"toolbarMode": "minimal", "showErrorDetails": "type", "showErrorLinks": False}
    assert {"light", "dark"} <= config["theme"].keys()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_theme_colours_can_be_read(theme):
    with (ROOT / ".streamlit" / "config.toml").open("rb") as file:
        colours = tomllib.load(file)["theme"][theme]
    backgrounds = [colours["backgroundColor"], colours["secondaryBackgroundColor"]]
    backgrounds += [colours["sidebar"]["backgroundColor"], colours["sidebar"]["secondaryBackgroundColor"]]
    for background in backgrounds:
        assert contrast(colours["textColor"], background) >= 7
        assert contrast(colours["linkColor"], background) >= 4.5
        assert contrast(colours["primaryColor"], background) >= 4.5


def contrast(first, second):
    """Contrast ratio of two colours (WCAG 2.2)."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_no_file_points_at_one_machine_or_one_registry():
    # Written in pieces, so that this file does not match.
    folders = "|".join(["wo" + "rk", "ro" + "ot", "ho" + r"me/\w+", "Us" + r"ers/\w+"])
    hosts = "|".join(["py" + r"pi\.org", "pythonhosted" + r"\.org", "npm" + r"js\.(?:org|com)"])
    pattern = re.compile(rf"(?<![\w./-])/(?:{folders})/|\b(?:{hosts})")
    wrong = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:4096] or "vendor" in path.parts:
            continue
        text = data.decode("utf-8", errors="replace")
        wrong += [f"{relative(path)}: {found.group()}" for found in pattern.finditer(text)]
    assert wrong == []


def test_no_large_or_generated_file_is_tracked():
    for path in tracked_files():
        assert path.stat().st_size < 6 * 2**20, f"{relative(path)} is large; bring it at install time"
        assert not {"__pycache__", ".venv", ".attnscope", "test-results"} & set(path.parts), relative(path)


def test_components_load_nothing_and_set_no_markup():
    scripts = [
        path for end in ("js", "css") for path in (ROOT / "dashboard" / "components").rglob(f"*.{end}")
    ]
    assert scripts
    forbidden = re.compile(
        r"https?://(?!www\.w3\.org)|@import|url\(\s*['\"]?(?!data:|#)|\bimport\s*\(|\bfetch\s*\(|"
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\s*\(|new Function"
    )
    found = [
        (relative(path), match.group())
        for path in scripts
        for match in forbidden.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_run_prepares_brings_and_starts():
    command = [
        "make",
        "--dry-run",
        "--no-print-directory",
        "run",
        "PORT=8765",
        "HEADLESS=true",
        "VENV_PYTHON=py",
    ]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    prepare, bring, start = lines
    assert prepare.endswith('scripts/environment.py app --torch-index ""')
    assert bring == '"py" -m analysis bring --all'
    assert start == ('exec "py" -m streamlit run dashboard/app.py --server.port=8765 --server.headless=true')


def test_continuous_integration_runs_the_same_two_commands():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("exec make check test")
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_environment_script_can_complain_under_an_old_python(monkeypatch):
    source = (ROOT / "scripts" / "environment.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    monkeypatch.setattr(environment.sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer.*PYTHON=python3\.11"):
        environment.main(["app"])


def test_a_torch_index_is_named_or_addressed():
    assert environment.torch_index_address("cpu").endswith("/whl/cpu")
    assert environment.torch_index_address("https://mirror.example/torch") == "https://mirror.example/torch"
    assert environment.pinned_line("torch", root=ROOT).startswith("torch==")
    with pytest.raises(ValueError, match=r"no line for absent; add an exact pin\."):
        environment.pinned_line("absent", root=ROOT)


@pytest.mark.slow
def test_an_environment_is_made_once_and_mended(tmp_path, monkeypatch, capfd):
    """In a folder with a space; the requirements are empty, so that nothing is downloaded."""
    root = tmp_path / "a check out"
    root.mkdir()
    for file_name in ("requirements.txt", "constraints.txt", "requirements-dev.txt"):
        (root / file_name).write_text("# nothing\n", encoding="utf-8")
    python = root / ".venv" / "bin" / "python"

    assert environment.prepare("app", root=root) is True
    assert subprocess.run([python, "-c", "import pip"], check=False).returncode == 0
    calls = []
    install = environment.install
    monkeypatch.setattr(environment, "install", lambda *a, **k: (calls.append(a), install(*a, **k)))
    capfd.readouterr()
    assert environment.prepare("app", root=root) is False
    assert capfd.readouterr() == ("", "")
    assert environment.prepare("dev", root=root) is True
    assert environment.prepare("app", root=root) is False  # dev contains app
    assert len(calls) == 1

    (root / "constraints.txt").write_text("# edited\n", encoding="utf-8")
    assert environment.prepare("app", root=root) is True
    stamp = root / ".venv" / "attnscope-app.json"
    stamp.write_text("{half a stam", encoding="utf-8")
    assert environment.prepare("app", root=root) is True
    assert environment.prepare("app", root=root) is False

    python.unlink()
    python.symlink_to("/nonexistent/python")
    assert environment.prepare("app", root=root) is True
    assert environment.installed_python(python) is not None


def test_a_failed_install_says_what_to_do_and_leaves_no_stamp(tmp_path, monkeypatch):
    for file_name in ("requirements.txt", "constraints.txt"):
        (tmp_path / file_name).write_text("# nothing\n", encoding="utf-8")
    monkeypatch.setattr(environment, "installed_python", lambda python: "3.11")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "requirements.txt").write_text("./absent-package-folder\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"pip could not install everything.*run make again"):
        environment.prepare("app", root=tmp_path)
    assert list(tmp_path.glob(".venv/attnscope-*.json")) == []


def test_a_browser_that_does_not_start_is_passed_over(tmp_path, monkeypatch):
    launcher = tmp_path / "chromium"
    launcher.write_text("#!/bin/sh\necho 'install the package first' >&2\nexit 1\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("ATTNSCOPE_BROWSER", str(launcher))
    assert not starts(str(launcher))
    assert find_browser() != str(launcher)
    launcher.write_text("#!/bin/sh\necho 'Chromium 1'\n")
    assert find_browser() == str(launcher)


def test_requests_that_leave_the_machine_are_noticed():
    for local in ("http://localhost:8501/", "ws://127.0.0.1:8501/_stcore/stream", "data:,x", "blob:http://x"):
        assert is_local(local)
    for outside in ("https://cdn.example/d3.js", "http://localhost.example:80/", "http://10.0.0.1/"):
        assert not is_local(outside)
    assert is_known_probe("http://localhost:8501/image/_stcore/health")
    assert not is_known_probe("http://localhost:8501/_stcore/health")


def test_dockerfile_copies_what_the_app_needs():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    order = [name for name, _ in instructions]
    let_through = set((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())
    sources = [source for name, rest in instructions if name == "COPY" for source in rest.split()[:-1]]
    assert {*ROOMS, "models", ".streamlit", "requirements.txt", "constraints.txt"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in let_through
    user = order.index("USER")
    bring = next(i for i, (_, rest) in enumerate(instructions) if "analysis bring --all" in rest)
    assert user < bring < order.index("CMD")
    assert dict(instructions)["EXPOSE"] == "8501"
    assert "/_stcore/health" in dict(instructions)["HEALTHCHECK"]
    assert "--server.address=0.0.0.0" in dict(instructions)["CMD"]
    assert any(name == "ARG" and rest.startswith("TORCH_INDEX=") for name, rest in instructions)
