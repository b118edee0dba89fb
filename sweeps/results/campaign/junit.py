"""What pytest's JUnit file says."""

from pathlib import Path
from xml.etree import ElementTree

from campaign.ledger import GpuTests

_LONGEST_REASON = 200


def read_junit(path: Path) -> GpuTests | None:
    """Outcomes by test: `passed`, or `failed`, `error`, `skipped` and the first line of the reason.

    None where there is no such file, or pytest was killed while it wrote it.
    """
    try:
        suite = ElementTree.parse(path).getroot().find("testsuite")
    except (FileNotFoundError, ElementTree.ParseError):
        return None
    assert suite is not None, "pytest writes one suite"
    outcomes = {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in suite.iter("testcase")}
    return GpuTests(seconds=float(suite.get("time", 0)), outcomes=outcomes)


def _outcome(case: ElementTree.Element) -> str:
    for tag, word in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        found = case.find(tag)
        if found is not None:
            reason = (found.get("message") or "").strip().splitlines()
            return f"{word}: {reason[0][:_LONGEST_REASON]}" if reason else word
    return "passed"
