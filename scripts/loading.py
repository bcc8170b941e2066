"""Which of our files load together with one of them, read from their import statements."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("attn_core", "analysis", "dashboard")


def imported_names(tree: ast.AST, *, only_when_loaded: bool = False) -> list[str]:
    """Dotted names that a file imports.

    Args:
        only_when_loaded: leave out what is imported inside functions and for type checking.
    """
    waiting, names = [tree], []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        inside_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        type_checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if only_when_loaded and (inside_function or type_checking):
            continue
        waiting += ast.iter_child_nodes(node)
    return names


def own_files(name: str) -> list[Path]:
    """Files of ours that importing a dotted name loads: the packages on the way and the module itself."""
    parts = name.split(".")
    if parts[0] not in ROOMS:
        return []
    stems = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    candidates = [path for stem in stems for path in (stem / "__init__.py", stem.with_suffix(".py"))]
    return [path for path in candidates if path.is_file()]


def loaded_with(start: Path) -> dict[Path, list[str]]:
    """File → names it imports while loading, for ``start`` and everything of ours that loads with it."""
    found: dict[Path, list[str]] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in found:
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
            found[path] = imported_names(tree, only_when_loaded=True)
            waiting += [file for name in found[path] for file in own_files(name)]
    return found


def module_name(path: Path) -> str:
    """Dotted name of one of our files."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
