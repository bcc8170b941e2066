"""Fetch a model from the Hub: look at its list of files, then download safetensors, config and tokenizer alone."""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from tqdm.std import tqdm

from analysis.errors import ModelUnavailableError
from analysis.hf.files import INDEX, WEIGHTS, refuse_by_names, weight_names
from analysis.hf.memory import check_memory
from analysis.models import Progress, Source, bundled_names

_KEPT = re.compile(
    r"^((special_tokens_map|added_tokens|tokenizer\w*|vocab|normalizer|preprocessor_config|processor_config|config)"
    r"\.json|vocab\.txt|merges\.txt|[\w.]+\.(model|spm|tiktoken)|README\.md)$"
)
"""Small files beside the weights: configuration, tokenizer, processor, model card; no code."""

_CARD_LIMIT = 64 * 2**20  # bytes; no tokenizer file is larger
_TIMEOUT = 10.0  # seconds until the first answer
_UNREACHABLE = (hub_errors.OfflineModeIsEnabled, HTTPError, OSError)


def fetch(repository: str, revision: str | None, *, report: Progress) -> Source:
    """The local copy of a Hub model, at the exact commit that the revision means now.

    Without network, or with ``HF_HUB_OFFLINE=1``, the copy from an earlier download is taken.

    Raises:
        UnsupportedModelError: it has no safetensors weights, or they do not fit into memory.
        ModelUnavailableError: the Hub does not answer, or it has no such model or revision for this user.
    """
    _check_name(repository)
    report("asking the Hub", 0.0)
    try:
        info = huggingface_hub.HfApi().model_info(
            repository, revision=revision, files_metadata=True, timeout=_TIMEOUT
        )
    except (hub_errors.RepositoryNotFoundError, hub_errors.RevisionNotFoundError) as error:
        raise _not_there(repository, revision, error) from error
    except _UNREACHABLE as error:
        if _status(error) in (401, 403, 404):  # an answer without the Hub's own error code, as mirrors give
            raise _not_there(repository, revision, error) from error
        return _from_cache(repository, revision, error)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if "/" not in file.rfilename}
    refuse_by_names(sizes.keys(), what=repository)
    try:
        return _download(repository, revision, sizes, report)
    except (hub_errors.RepositoryNotFoundError, hub_errors.RevisionNotFoundError) as error:
        raise _not_there(repository, revision, error) from error
    except _UNREACHABLE as error:
        raise _download_failed(repository, error) from error


def _download(repository: str, revision: str | None, sizes: dict[str, int], report: Progress) -> Source:
    small = [name for name, size in sizes.items() if _KEPT.match(name) and size <= _CARD_LIMIT]
    if WEIGHTS in sizes:
        weights = [WEIGHTS]
    else:
        index = huggingface_hub.hf_hub_download(repository, INDEX, revision=revision, etag_timeout=_TIMEOUT)
        weights = weight_names(Path(index).parent)
        small.append(INDEX)
    check_memory(sum(sizes.get(name, 0) for name in weights), what=repository)
    folder = huggingface_hub.snapshot_download(
        repository,
        revision=revision,
        allow_patterns=[_escaped(name) for name in [*small, *weights]],
        etag_timeout=_TIMEOUT,
        tqdm_class=_bar(report),
    )
    snapshot = Path(folder)  # named by its commit
    return Source(repository, repository, snapshot.name, snapshot, bundled=False)


def _from_cache(repository: str, revision: str | None, error: BaseException) -> Source:
    """What an earlier download left, or the message that nothing did."""
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=["config.json"]
            )
        )
    except (OSError, HTTPError, hub_errors.EntryNotFoundError, ValueError) as missing:
        raise _unreachable(repository, error) from missing
    names = {path.name for path in folder.iterdir()}
    if "config.json" not in names or not _has_weights(folder, names):
        raise _unreachable(repository, error)
    return Source(
        repository,
        repository,
        folder.name,
        folder,
        bundled=False,
        notes=("The Hub was not reached; this is the copy of an earlier download.",),
    )


def _has_weights(folder: Path, names: Collection[str]) -> bool:
    if WEIGHTS in names:
        return True
    return INDEX in names and set(weight_names(folder)) <= set(names)


def _check_name(repository: str) -> None:
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ModelUnavailableError(
            f"load_model: {repository!r} is neither a bundled model ({bundled_names()}) nor a Hub id such as "
            "org/name, and there is no folder of that name."
        ) from error


def _not_there(repository: str, revision: str | None, error: BaseException) -> ModelUnavailableError:
    if isinstance(error, hub_errors.GatedRepoError):
        return ModelUnavailableError(
            f"load_model: {repository} is gated; accept its terms on its Hub page and sign in with `hf auth login` "
            f"on the machine that runs AttnScope, or choose a bundled model ({bundled_names()})."
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return ModelUnavailableError(f"load_model: {repository} has no revision {revision!r} on the Hub.")
    return ModelUnavailableError(
        f"load_model: the Hub has no model {repository}, or it is private; check the spelling (org/name), or choose "
        f"a bundled model ({bundled_names()})."
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status that came with an error, if one did."""
    return getattr(getattr(error, "response", None), "status_code", None)


def _unreachable(repository: str, error: BaseException) -> ModelUnavailableError:
    offline = isinstance(error, hub_errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if offline else f"it did not answer: {_first_line(error)}"
    return ModelUnavailableError(
        f"load_model: {repository} is not on this machine and the Hub cannot be reached ({why}). The bundled models "
        f"need no network: {bundled_names()}. A local folder with config.json and {WEIGHTS} works too."
    )


def _download_failed(repository: str, error: BaseException) -> ModelUnavailableError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelUnavailableError(
            f"load_model: the disk is full while downloading {repository}; make room in the Hub's cache "
            "(`hf cache` shows it) and try again."
        )
    return ModelUnavailableError(
        f"load_model: the download of {repository} broke off ({_first_line(error)}); try again, it goes on where it "
        f"stopped. The bundled models need no network: {bundled_names()}."
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def _escaped(name: str) -> str:
    """A file name as a pattern that matches it alone."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def _bar(report: Progress) -> type[tqdm]:
    """A progress bar class for the Hub's client that reports bytes and draws nothing."""

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            options |= {"file": io.StringIO(), "disable": False}
            super().__init__(*args, **options)

        def update(self, n: float | None = 1) -> bool | None:
            moved: bool | None = super().update(n)
            if self.unit == "B" and self.total:
                report("downloading", min(self.n / self.total, 1.0))
            return moved

    return Bar
