"""The systemd unit is valid (checked by systemd, where it is installed) and its command line parses."""

import shutil
import subprocess
from pathlib import Path

import pytest

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


def test_the_command_line_of_the_unit_parses() -> None:
    (start,) = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    from transom.cli.main import parsers

    words = start.split()[1:]
    parser, _ = parsers()
    assert parser.parse_args(words).log_format == "json"
