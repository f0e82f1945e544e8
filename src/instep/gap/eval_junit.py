"""A verdict as JUnit XML, which every CI system shows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

from .gate import Judged, Verdict


def write_junit(path: Path, verdict: Verdict) -> Path:
    """Write a verdict as JUnit XML: a suite per variation, a case per rule."""
    suites = ElementTree.Element("testsuites", name=_clean(f"instep gate {verdict.policy}"))
    for group, members in groupby(verdict.judged, key=lambda one: one.group):
        _suite(suites, group, list(members))
    _count(suites, list(verdict.judged))
    ElementTree.indent(suites)
    path.write_bytes(ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True))
    return path


def _suite(suites: ElementTree.Element, group: str, members: list[Judged]) -> None:
    suite = ElementTree.SubElement(suites, "testsuite", name=_clean(group))
    _count(suite, members)
    for one in members:
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(group), name=_clean(one.name))
        if not one.passed:
            failure = ElementTree.SubElement(case, "failure", message=_clean(one.words))
            failure.text = _clean(one.words)
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(one.words)


def _count(element: ElementTree.Element, members: list[Judged]) -> None:
    element.set("tests", str(len(members)))
    element.set("failures", str(sum(not one.passed for one in members)))
    element.set("errors", "0")


def _clean(text: str) -> str:
    """XML 1.0 has no control characters, and names come from files of strangers."""
    return "".join(c if c.isprintable() else "?" for c in text)
