# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib
import json
import re
import typing as t
from html.parser import HTMLParser

import pytest

from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.page import (
    COLUMNS,
    TIME,
    Markup,
    element,
    joined,
    page_of,
)
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._audit.report import report_of

# Texts that could begin or end markup, and invisible characters.
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</style></title></textarea>--><!--",
    "&lt;b&gt;&amp;",
    "\u202egnp\u2066.exe\u2028\u2029\x00\x1b]0;x\x07",
)
ALLOWED = {
    "html", "head", "meta", "link", "title", "style", "script", "noscript", "body", "header", "main", "h1", "h2", "p",
    "section", "div", "button", "b", "span", "a", "ol", "li", "bdi", "time", "label", "input", "select", "option",
    "table", "caption", "thead", "tr", "th", "pre", "code",
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


def data(source: str) -> list[dict[str, t.Any]]:
    """Return the hosts in the data of the page."""
    (text,) = re.findall(r'<script id="hosts" type="application/json">(.*?)</script>', source, re.DOTALL)
    hosts: list[dict[str, t.Any]] = json.loads(text)
    return hosts


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
    source = page_of(report_of(results, text), None, text, text)
    page = Page(source)
    assert page.open == []
    assert {tag for tag, _attributes in page.elements} <= ALLOWED
    assert [found.get("type") for found in page.all("script")] == ["application/json", None]
    assert len(page.all("style")) == 1
    assert all(str(found["href"]).startswith("#finding=") for found in page.all("a"))
    assert not [name for _tag, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not [1 for _tag, attributes in page.elements if {"src", "srcset", "action", "style"} & set(attributes)]
    # Invisible characters are escaped.
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", source)
    assert len(data(source)) == 3
    assert source.count("</script>") == 2
    source.encode()


def test_escaped_texts_are_readable() -> None:
    source = page_of(report_of({"<b>&amp;\n\u202e": full("<i>")}))
    [host] = data(source)
    assert host["host"] == "<b>&amp; \\u202e"
    assert host["engines"][0]["target"] == host["findings"][0]["text"] == host["gpus"]["models"][0][0] == "<i>"
    assert Page(source).texts["bdi"] == ["<i>"]


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
    labels = [engine["label"] for host in data(page_of(report_of(results))) for engine in host["engines"]]
    assert labels == ["docker", "containerd/k3s", "docker", "docker/rootless"]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"engine": "docker", "installed": True, "running": True}, (None, False)),
        ({"engine": "docker", "installed": True, "running": False}, ("stopped", False)),
        ({"engine": "docker", "installed": False, "running": False}, ("not installed", False)),
        ({"engine": "docker", "running": True, "restart_required": True}, (None, True)),
        ({"engine": "docker", "running": False, "unfinished_restart": True}, ("stopped", True)),
        # Podman has no daemon.
        ({"engine": "podman", "installed": True, "running": False}, (None, False)),
        ({"engine": "docker"}, (None, False)),
    ],
)
def test_state_of_an_engine(engine: dict[str, t.Any], expected: tuple[str | None, bool]) -> None:
    [host] = data(page_of(report_of({"a": {"engines": [engine], "cdi": {"files": []}}})))
    [row] = host["engines"]
    assert (row["state"], row["restart_pending"]) == expected


def test_the_order_offers_each_column_in_both_directions() -> None:
    page = Page(page_of(report_of({"a": full("x")})))
    assert len(page.all("th", scope="col")) == len(COLUMNS)
    values = [str(found["value"]) for found in page.all("option")][-2 * len(COLUMNS) :]
    assert sorted(values) == sorted(f"{number}{sign}" for number in range(len(COLUMNS)) for sign in ("", "-"))


def test_time_of_the_page() -> None:
    report = report_of({"a": full("x")})
    # The time of the report is shown rather than that of the controller.
    assert Page(page_of(report_of({}, "noon"), "now")).texts["time"] == ["noon"]
    assert "time" not in Page(page_of(report)).texts
    first, second = (page_of(report, text).encode() for text in ("now", "<later>"))
    assert first != second
    assert TIME.sub(b"", first) == TIME.sub(b"", second)
    # The text of a host cannot look like the time.
    hostile = [page_of(report_of({f"<time>{text}</time>": full("x")})).encode() for text in ("now", "then")]
    assert TIME.sub(b"", hostile[0]) != TIME.sub(b"", hostile[1])


def test_top_problems() -> None:
    found = [{"severity": "info", "id": f"i{number}"} for number in range(9)]
    results = {"a": {"engines": [], "findings": [*found, {"severity": "critical", "id": "a b&</a>"}]}, "b": full("i3")}
    page = Page(page_of(report_of(results)))
    links = [found["href"] for found in page.all("a")]
    assert len(links) == 8
    assert links[0] == "#finding=a+b%26%3C%2Fa%3E"
    # Findings of one severity are sorted by the number of their hosts.
    assert links[1:4] == ["#finding=i3", "#finding=i0", "#finding=i1"]


def test_page_without_the_script() -> None:
    source = page_of(report_of({f"gpu-{number}": full("</noscript>") for number in range(60)}))
    (text,) = re.findall(r"<noscript>(.*?)</noscript>", source, re.DOTALL)
    assert len(re.findall(r"^warning +gpu-\d+ ", text, re.MULTILINE)) == 60


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
