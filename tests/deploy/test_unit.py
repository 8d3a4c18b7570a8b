"""The systemd unit is valid (checked by systemd, where it is installed) and its command line parses."""

import shutil
import subprocess
from pathlib import Path

import pytest

from transom.engine.child import STOP_SECONDS
from transom.limits import LIMITS

UNIT = Path(__file__).parents[2] / "deploy" / "transom.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_well_formed(tmp_path: Path) -> None:
    # The unit's program is not installed on a test machine, and systemd would reject the unit for that.
    unit = tmp_path / "transom.service"
    unit.write_text(UNIT.read_text().replace("/opt/transom/bin/transom", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "transom.service" not in done.stderr, done


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_confined() -> None:
    """systemd's own measure: 10 is unprotected. A service that listens on the network cannot go below 1."""
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", str(UNIT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_resources_of_the_unit_are_bounded() -> None:
    found = settings()
    for name in ("MemoryMax", "TasksMax", "LimitNOFILE", "LimitCORE", "WatchdogSec", "TimeoutStopSec"):
        assert found[name] not in ("", "infinity"), name
    # By default systemd stops the whole service when the kernel ends the engine for lack of memory.
    assert found["OOMPolicy"] == "continue"


def test_systemd_waits_for_the_end_of_the_answers() -> None:
    assert float(settings()["TimeoutStopSec"]) > LIMITS.finish_seconds + LIMITS.close_seconds + STOP_SECONDS


def test_the_command_line_of_the_unit_parses() -> None:
    (start,) = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    from transom.cli.main import parsers

    words = start.split()[1:]
    parser, _ = parsers()
    assert parser.parse_args(words).log_format == "json"
