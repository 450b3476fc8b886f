# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib
import re
import typing as t
from html.parser import HTMLParser

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.page import Markup, element, joined, page_of
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import report_of

# Texts that could begin or end markup.
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title></textarea>--><!--",
    "&lt;b&gt;&amp;",
    "\u202egnp\u2066.exe\u2028\u2029\x00\x1b]0;x\x07",
)
ALLOWED = {
    "html", "head", "meta", "link", "title", "style", "script", "body", "header", "main", "h1", "p", "section", "div",
    "button", "b", "span", "label", "input", "select", "option", "table", "caption", "thead", "tbody", "tr", "th", "td",
    "ul", "li", "bdi", "code", "dl", "dt", "dd",
}  # fmt: skip


class Page(HTMLParser):
    """The page as a browser parses it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _value in attrs}) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [found for name, found in self.elements if name == tag and wanted.items() <= found.items()]


def full(text: str) -> dict[str, t.Any]:
    """The result of a host with ``text`` in every value."""
    return {
        "engines": [
            {"engine": text, "flavor": text, "user": text, "target": text, "version": text, "default_runtime": text}
        ],
        "toolkit": {"version": text, "known_cves": [{"name": text}]},
        "gpus": {"driver_version": text, "devices": [{"model": text}]},
        "cdi": {"files": [{"path": text, "kind": f"nvidia.com/{text}", "cdi_version": text, "driver_version": text}]},
        "findings": [{"severity": text, "id": text, "subject": text, "text": text, "advice": text}],
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_hosts_are_escaped(text: str) -> None:
    results = {text: full(text), "gone": {"unreachable": True, "msg": text}, "failed": {"failed": True, "msg": text}}
    source = page_of(report_of(results, text))
    page = Page(source)
    assert page.open == []
    assert {tag for tag, _attributes in page.elements} <= ALLOWED
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert not [name for _tag, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not [1 for _tag, attributes in page.elements if {"src", "srcset", "action", "style"} & set(attributes)]
    # Invisible characters are escaped.
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", source)
    assert len(page.all("tbody", class_="host")) == 3
    source.encode()


def test_escaped_texts_are_readable() -> None:
    page = Page(page_of(report_of({"<b>&amp;": full("<i>")})))
    assert "<b>&amp;" in page.texts["bdi"]
    assert page.texts["bdi"].count("<i>") > 8
    assert page.all("th", data_sort="<b>&amp;")


def test_content_security_policy() -> None:
    source = page_of(report_of({"a": full("x")}))
    (meta,) = Page(source).all("meta", http_equiv="Content-Security-Policy")
    policy = dict(rule.strip().split(" ", 1) for rule in str(meta["content"]).split(";"))
    for kind in ("style", "script"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert policy == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    # The policy precedes the style and the script.
    assert source.index("Content-Security-Policy") < source.index("<style>") < source.index("<script>")


def test_page_loads_no_other_file() -> None:
    source = page_of(report_of({"a": full("x")}))
    assert not re.findall(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp|innerHTML|eval\(", source)


def test_page_is_reproducible() -> None:
    report = report_of({"a": full("x")})
    assert page_of(report) == page_of(report)


def test_choices_of_filters() -> None:
    results = {
        "a": {
            **full("x"),
            "engines": [{"engine": "docker", "flavor": "system"}, {"engine": "containerd", "flavor": "k3s"}],
        },
        "b": {**full("x"), "engines": [{"engine": "docker"}, {"engine": "docker", "flavor": "rootless", "user": "al"}]},
    }
    page = Page(page_of(report_of(results)))
    values = [found["value"] for found in page.all("option")]
    assert values[: values.index("")] == []
    assert values[1:4] == ["containerd/k3s", "docker", "docker/rootless"]
    assert values[4:6] == ["", "x"]
    assert [found["data-engine"] for found in page.all("li") if "data-engine" in found] == [
        "docker", "containerd/k3s", "docker", "docker/rootless",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"engine": "docker", "installed": True, "running": True}, []),
        ({"engine": "docker", "installed": True, "running": False}, ["stopped"]),
        ({"engine": "docker", "installed": False, "running": False}, ["not installed"]),
        ({"engine": "docker", "running": True, "restart_required": True}, ["restart pending"]),
        ({"engine": "docker", "running": False, "unfinished_restart": True}, ["stopped", "restart pending"]),
        # Podman has no daemon.
        ({"engine": "podman", "installed": True, "running": False}, []),
        ({"engine": "docker"}, []),
    ],
)
def test_state_of_an_engine(engine: dict[str, t.Any], expected: list[str]) -> None:
    page = Page(page_of(report_of({"a": {"engines": [engine], "cdi": {"files": []}}})))
    assert [text for text in page.texts["span"] if text in ("stopped", "not installed", "restart pending")] == expected


def test_rows_and_columns() -> None:
    page = Page(page_of(report_of({"a": full("x"), "gone": {"unreachable": True}})))
    titles = len(page.all("th", scope="col"))
    assert titles == 8
    assert len([found for found in page.all("td") if "data-label" in found]) == 2 * (titles - 1)
    assert len(page.all("th", scope="row")) == 2
    toggles = [found["aria-controls"] for found in page.all("button", class_="toggle")]
    assert toggles == [found["id"] for found in page.all("tr", class_="details")] == ["host-0", "host-1"]


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("p", {}, "<p></p>"),
        ("br", {}, "<br>"),
        ("p", {"hidden": True}, "<p hidden></p>"),
        ("p", {"hidden": False, "id": None}, "<p></p>"),
        ("p", {"class_": "a", "data_b": 0}, '<p class="a" data-b="0"></p>'),
        ("p", {"title": "\"'<>&"}, '<p title="&quot;&#x27;&lt;&gt;&amp;"></p>'),
    ],
)
def test_element(name: str, attributes: dict[str, t.Any], expected: str) -> None:
    assert element(name, **attributes) == expected


def test_only_markup_is_markup() -> None:
    assert joined("<b>", None, Markup("<i>"), element("u", "&")) == "&lt;b&gt;<i><u>&amp;</u>"
