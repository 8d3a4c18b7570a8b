"""The built-in models: assembly from parts, once and again, and its failures."""

import hashlib
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transom.errors import ModelFileError
from transom.weights import builtin
from transom.weights.builtin import cache_folder, obtain, resolve_model
from transom.weights.catalogue import GEMMA_3_270M, BuiltinModel, Installed, Part

CONTENT = [bytes([i]) * 3_000_000 for i in range(3)]
WHOLE = b"".join(CONTENT)
MODEL = BuiltinModel(
    name="tiny",
    about="",
    licence="",
    file="tiny.gguf",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    source=Installed(tuple(Part(f"tiny-part{i}", f"tiny.part{i:02}") for i in range(3)), "tiny"),
)


def ignore(done: int, total: int) -> None: ...


def install(site: Path, number: int, content: bytes) -> Path:
    """A distribution as pip installs it."""
    data = site / f"tiny_part{number}" / "data" / f"tiny.part{number:02}"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_bytes(content)
    info = site / f"tiny_part{number}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"tiny_part{number}/data/tiny.part{number:02},,\n")
    return data


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    for number, content in enumerate(CONTENT):
        install(site, number, content)
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "cache"


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"tiny.lock"}


def test_the_parts_make_the_file_and_nothing_else(site: Path, folder: Path) -> None:
    path = obtain(MODEL, folder, ignore)
    assert path.read_bytes() == WHOLE and leftovers(folder) == {"tiny.gguf"}


def test_progress_grows_to_the_whole(site: Path, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    obtain(MODEL, folder, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (MODEL.size, MODEL.size) and len(seen) >= 9


def test_a_second_start_reads_nothing(site: Path, folder: Path) -> None:
    first = obtain(MODEL, folder, ignore)
    for number in range(3):
        (site / f"tiny_part{number}" / "data" / f"tiny.part{number:02}").unlink()
    first.chmod(0)
    assert obtain(MODEL, folder, lambda done, total: pytest.fail("copied again")) == first


def test_a_changed_file_is_assembled_again(site: Path, folder: Path) -> None:
    path = obtain(MODEL, folder, ignore)
    with path.open("r+b") as file:
        file.write(b"damage")
    assert obtain(MODEL, folder, ignore).read_bytes() == WHOLE


def test_a_truncated_file_is_assembled_again(site: Path, folder: Path) -> None:
    path = obtain(MODEL, folder, ignore)
    os.truncate(path, 100)
    assert obtain(MODEL, folder, ignore).read_bytes() == WHOLE


def test_a_copy_of_the_file_serves_without_the_packages(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / MODEL.file).write_bytes(WHOLE)
    assert obtain(MODEL, folder, ignore).read_bytes() == WHOLE
    assert builtin._is_verified(folder / MODEL.file, MODEL)


def test_the_partial_file_of_a_killed_process_is_overwritten(site: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "tiny.partial").write_bytes(b"x" * 2 * MODEL.size)
    (folder / "tiny.lock").write_bytes(b"")
    assert obtain(MODEL, folder, ignore).read_bytes() == WHOLE
    assert leftovers(folder) == {"tiny.gguf"}


def test_one_of_many_concurrent_processes_copies_and_all_find_the_file(site: Path, folder: Path) -> None:
    reports: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        paths = list(
            pool.map(lambda _: obtain(MODEL, folder, lambda done, _: reports.append(done)), range(8))
        )
    assert {path.read_bytes() == WHOLE for path in paths} == {True}
    assert reports.count(MODEL.size) == 1


def test_damaged_parts_are_refused_and_leave_no_file(site: Path, folder: Path) -> None:
    install(site, 1, b"\x07" * 3_000_000)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: the package it comes from is damaged"):
        obtain(MODEL, folder, ignore)
    assert leftovers(folder) == set()


def test_a_missing_package_is_named_with_the_command_that_installs_it(folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tiny: package tiny-part0 is missing; .*pip .*transom\[tiny\]"):
        obtain(MODEL, folder, ignore)
    assert leftovers(folder) == set()


def test_a_package_without_its_file_is_named(site: Path, folder: Path) -> None:
    (site / "tiny_part2" / "data" / "tiny.part02").unlink()
    with pytest.raises(ModelFileError, match=r"tiny: package tiny-part2 lacks tiny\.part02"):
        obtain(MODEL, folder, ignore)


def test_a_failing_progress_callback_leaves_no_file(site: Path, folder: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(MODEL, folder, interrupt)
    assert leftovers(folder) == set()


@pytest.fixture
def little_room() -> Iterator[None]:
    """Limits files to a megabyte, which fails like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_in_the_error(site: Path, folder: Path, little_room: None) -> None:
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: no room for its 9000000 bytes") as caught:
        obtain(MODEL, folder, ignore)
    assert "\n" not in str(caught.value) and leftovers(folder) == set()


def test_a_folder_that_cannot_be_created_is_an_error_of_one_line(site: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: cannot be written: "):
        obtain(MODEL, tmp_path / "file" / "cache", ignore)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRANSOM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/transom")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/transom")
    monkeypatch.setenv("TRANSOM_CACHE", "/t")
    assert cache_folder() == Path("/t")


def test_a_path_is_taken_as_it_is_and_a_missing_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"")
    assert resolve_model(str(file)) == file
    with pytest.raises(ModelFileError, match=r"other\.gguf: no such file, .*gemma-3-270m"):
        resolve_model(str(tmp_path / "other.gguf"))


def test_a_file_without_read_permission_is_refused_in_one_line(tmp_path: Path) -> None:
    """Root may read every file, so the test drops its privileges for a moment."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "own.gguf").write_bytes(b"")
    folder.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        with pytest.raises(ModelFileError, match=r"own\.gguf: cannot be read: Permission denied"):
            resolve_model(str(folder / "own.gguf"))
    finally:
        os.seteuid(user)
        folder.chmod(0o700)


def test_the_default_is_the_built_in_gemma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_CACHE", str(tmp_path))
    monkeypatch.setattr(builtin, "BUILTIN", {"gemma-3-270m": MODEL})
    (tmp_path / MODEL.file).write_bytes(WHOLE)
    assert resolve_model(None) == resolve_model("gemma-3-270m") == tmp_path / MODEL.file


@pytest.mark.model
def test_the_default_model_is_the_file_its_digest_names() -> None:
    with resolve_model(None).open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == GEMMA_3_270M.sha256
