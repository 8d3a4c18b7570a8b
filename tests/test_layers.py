"""Imports point down the list of layers, never up. The sources are parsed, so that lazy imports count too."""

import ast
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "transom"
LAB = ROOT / "lab"

LAYERS = (
    ("__main__",),
    ("cli",),
    ("server",),
    ("llm",),
    ("bench",),
    ("engine",),
    ("models",),
    ("weights",),
    ("text",),
    ("ops",),
    ("sched",),
    ("kv",),
    ("_native",),
    ("config", "sampling", "wire", "logs", "streams", "limits", "json_text"),
    ("steps",),
    ("values", "errors"),
)
"""Top first. A module may import from its own layer and any layer below it. `lab/` lies above all layers."""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

PURE = ("kv", "sched")
IMPURE = {
    "time",
    "random",
    "threading",
    "asyncio",
    "socket",
    "subprocess",
    "os",
    "secrets",
    "multiprocessing",
}


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of all imports in the file, including imports inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    own = layer_of(path)
    assert own in RANK, f"{own} is not in LAYERS; add it to the layer that it belongs to"
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "transom" or len(parts) == 1 or parts[1] not in RANK:
            continue
        assert RANK[parts[1]] >= RANK[own], f"{own} imports {name}, which lies above it"


@pytest.mark.parametrize("layer", PURE)
def test_the_cache_and_the_scheduler_import_no_clock_no_randomness_and_no_operating_system(
    layer: str,
) -> None:
    for path in (SOURCE / layer).rglob("*.py"):
        found = {name.split(".")[0] for name in imported(path)} & IMPURE
        assert not found, f"{path.name} imports {found}"


def test_the_product_does_not_import_the_lab() -> None:
    for path in modules():
        assert not any(name.startswith("transom_lab") for name in imported(path)), path


def test_no_module_imports_torch() -> None:
    for path in modules():
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & {"torch", "transformers"}, path


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count too: either module needs the other."""
    graph = import_graph()
    assert len(graph) > 100 and graph["transom.kv.cache"] and graph["transom_lab.fuzz.driver"], (
        "the import graph is nearly empty, so the test would pass vacuously"
    )
    assert not circles(graph), circles(graph)


def import_graph() -> dict[str, set[str]]:
    """The modules of the product and of the lab that each module imports, by dotted name.

    `transom` itself is left out: its `__init__` loads `transom.llm` lazily, for users.
    """
    paths = {
        **named_modules(SOURCE.parent, modules()),
        **named_modules(LAB, LAB.rglob("transom_lab/**/*.py")),
    }
    return {
        name: {module for found in imported(path) if (module := module_of(found, paths)) and module != name}
        for name, path in paths.items()
    }


def named_modules(root: Path, paths: Iterable[Path]) -> dict[str, Path]:
    """Paths by dotted name, as imported with `root` on sys.path."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def module_of(name: str, modules: Container[str]) -> str | None:
    """The module that an imported name refers to: the name itself, or the module that defines it."""
    return next((module for module in (name, name.rpartition(".")[0]) if module in modules), None)


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Modules on an import circle, or on a path between two circles.

    Repeatedly drops modules that import nothing or that no module imports, until only circles are left.
    """
    left = {name: set(found) for name, found in graph.items()}
    while True:
        imported_ones = set().union(*left.values()) if left else set()
        removed = {name for name, found in left.items() if not found or name not in imported_ones}
        if not removed:
            return set(left)
        left = {name: found - removed for name, found in left.items() if name not in removed}


def test_an_import_circle_is_detected() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"b", "c"}
