# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import json
import sys
import traceback
import types
import typing as t
import zlib

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import bundled
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import (
    ConfigurationError,
    MissingPackageError,
    NvidiaError,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import tomlkit_loader
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import load_bundled_packages
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._bundled import pack

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Absent:
    """Makes a host without a package, wherever it is installed; a shipped one may still come first."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, *_context: object) -> None:
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(name)


def forget(*names: str) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        del sys.modules[module]


@pytest.fixture(autouse=True)
def _bare_host(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[None]:
    """A host that has neither package, to which nothing was sent."""
    names = ("tomlkit", "yaml", "made_up")
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    monkeypatch.setattr(bundled, "_offered", {})
    monkeypatch.setattr(tomlkit_loader, "_offered", [])
    monkeypatch.setattr(sys, "meta_path", [Absent(*names), *sys.meta_path])
    forget(*names)
    yield
    forget(*names)
    sys.modules.update(before)


def on_controller(name: str) -> str:
    """What a controller packs that has the package."""
    hidden = sys.meta_path.pop(0)
    try:
        shipment = pack(name)
    finally:
        sys.meta_path.insert(0, hidden)
    assert shipment is not None
    return shipment


def shipment_of(sources: dict[str, str], version: str = "1.0", python: t.Sequence[int] = (3, 8)) -> str:
    text = json.dumps({"version": version, "python": list(python), "sources": sources})
    return base64.b64encode(zlib.compress(text.encode())).decode()


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the table whose versions and sources the test chooses."""
    package = bundled.Package("Made-Up", (1, 0), {sys.version_info[:2]: "7.5"})
    monkeypatch.setitem(bundled.PACKAGES, "made_up", package)


def install(name: str, version: str | None) -> types.ModuleType:
    module = types.ModuleType(name)
    if version is not None:
        module.__dict__["__version__"] = version
    sys.modules[name] = module
    return module


def message_of(name: str) -> str:
    with pytest.raises(NvidiaError) as caught:
        bundled.import_bundled(name)
    return str(caught.value)


class TestFromTheController:
    @pytest.fixture
    def shipped(self) -> t.Any:
        tomlkit_loader.offer(on_controller("tomlkit"))
        return tomlkit_loader.load()

    def test_works_as_the_real_one(self, shipped: t.Any) -> None:
        text = '# why\nversion = 2\n\n[plugins."io.containerd.grpc.v1.cri"]  # cri\n  a.b = { c = [1, "x"] }\n'
        document = shipped.parse(text)
        assert shipped.dumps(document) == text
        document["plugins"]["io.containerd.grpc.v1.cri"]["enable_cdi"] = True
        assert shipped.dumps(document) == text + "enable_cdi = true\n"
        with pytest.raises(shipped.exceptions.ParseError):
            shipped.parse("a = ")

    def test_comes_from_memory(self, shipped: t.Any) -> None:
        modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tomlkit"}
        assert len(modules) > 8
        for name, module in modules.items():
            origin = module.__spec__ and module.__spec__.origin
            assert str(origin).startswith("<controller>/tomlkit/"), name
            assert not hasattr(module, "__file__")
            assert module.__spec__ is not None
            assert module.__spec__.cached is None
        assert shipped.__path__ == []

    def test_is_loaded_once(self, shipped: t.Any) -> None:
        assert tomlkit_loader.load() is shipped

    def test_tracebacks_show_the_source(self, shipped: t.Any) -> None:
        with pytest.raises(shipped.exceptions.ParseError) as caught:
            shipped.parse("a = ")
        frame = traceback.extract_tb(caught.value.__traceback__)[1]
        assert frame.filename == "<controller>/tomlkit/api.py"
        assert "parse" in (frame.line or "")

    def test_leaves_the_ways_of_import_as_they_were(self) -> None:
        ways = (list(sys.path), list(sys.meta_path), list(sys.path_hooks))
        tomlkit_loader.offer(on_controller("tomlkit"))
        tomlkit_loader.load()
        assert (sys.path, sys.meta_path, sys.path_hooks) == ways

    def test_a_compiled_package_comes_without_its_compiled_part(self) -> None:
        bundled.register("yaml", on_controller("yaml"))
        yaml: t.Any = bundled.import_bundled("yaml")
        assert yaml.safe_load("a: [1, two]") == {"a": [1, "two"]}
        assert yaml.__with_libyaml__ is False
        assert yaml.__spec__.origin == "<controller>/yaml/__init__.py"
        assert bundled.import_bundled("yaml") is yaml

    def test_specifications_are_read_with_it(self) -> None:
        with pytest.raises(MissingPackageError):
            parse("x.yaml", b"a: 1")
        bundled.register("yaml", on_controller("yaml"))
        assert parse("x.yaml", b"a:\t[0:1, {b: 'c'}]") == {"a": ["0:1", {"b": "c"}]}
        with pytest.raises(ConfigurationError, match=r"x.yaml, line 1, column \d+: the file is not YAML"):
            parse("x.yaml", b"a: 'b")


class TestWhichOne:
    SOURCES: t.ClassVar[dict[str, str]] = {
        "made_up/__init__.py": "from made_up.part import value\n__version__ = '2.0'\n",
        "made_up/part/__init__.py": "from .leaf import value\n",
        "made_up/part/leaf.py": "value = 'café'\n",
    }

    @pytest.mark.usefixtures("made_up")
    @pytest.mark.parametrize("version", ["1.0", "1.0.3", "1.1.dev1", "12"])
    def test_the_hosts_own_goes_first_and_nothing_is_unpacked(self, version: str) -> None:
        own = install("made_up", version)
        bundled.register("made_up", "not even looked at")
        assert bundled.import_bundled("made_up") is own

    @pytest.mark.usefixtures("made_up")
    @pytest.mark.parametrize("version", ["0.9", "0.99.7", "unknown", None])
    def test_an_old_one_gives_way_with_all_its_parts(self, version: str | None) -> None:
        own = install("made_up", version)
        install("made_up.part", None)
        install("made_upper", None)
        bundled.register("made_up", shipment_of(self.SOURCES))
        loaded: t.Any = bundled.import_bundled("made_up")
        assert loaded is not own
        assert loaded.value == "café"
        assert sys.modules.pop("made_upper").__spec__ is None

    @pytest.mark.usefixtures("made_up")
    @pytest.mark.parametrize("error", [ImportError, SyntaxError])
    def test_a_broken_one_gives_way(self, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken:
            def find_spec(self, name: str, *_context: object) -> None:
                if name == "made_up":
                    raise error(name)

        monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
        bundled.register("made_up", shipment_of(self.SOURCES))
        assert bundled.import_bundled("made_up").__dict__["value"] == "café"

    @pytest.mark.parametrize("name", ["json", "made_upper", "made_up.other", "part", "leaf", ""])
    def test_other_names_are_not_answered(self, name: str) -> None:
        assert bundled._MemoryImporter({"made_up/__init__.py": "", "made_up/part.py": ""}).find_spec(name) is None


@pytest.mark.usefixtures("made_up")
class TestErrors:
    @pytest.mark.parametrize("sent", [None, ""])
    def test_neither_has_it(self, sent: str | None) -> None:
        bundled.register("made_up", sent)
        assert message_of("made_up") == (
            f"The Python package Made-Up 1.0 or newer is needed: this host's Python {HERE} has none, and the controller"
            " sent none. Install it for the controller's Ansible (python3 -m pip install Made-Up): it is then sent"
            " along, and hosts need nothing installed."
        )

    def test_an_action_learns_which_one_is_needed(self) -> None:
        with pytest.raises(MissingPackageError) as caught:
            bundled.import_bundled("made_up")
        assert caught.value.details == {"needed": "made_up"}
        # What another one would not mend is no reason to send it.
        bundled.register("made_up", shipment_of({}, "8.0", (3, 99)))
        with pytest.raises(NvidiaError) as other:
            bundled.import_bundled("made_up")
        assert not other.value.details

    def test_the_hosts_own_is_too_old(self) -> None:
        install("made_up", "0.9.1")
        assert f"this host's Python {HERE} has only 0.9.1, and the controller sent none." in message_of("made_up")

    def test_the_python_is_too_old(self) -> None:
        bundled.register("made_up", shipment_of({}, "8.0", (3, 99)))
        assert message_of("made_up") == (
            f"The Python package Made-Up 1.0 or newer is needed: this host's Python {HERE} has none, and the controller"
            f" sent 8.0, which needs Python 3.99 or newer. Install the last for Python {HERE} on the controller"
            " (python3 -m pip install 'Made-Up==7.5.*'), or on this host."
        )

    def test_the_python_is_too_old_and_no_last_one_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(bundled.PACKAGES, "made_up", bundled.Package("Made-Up", (1, 0), {}))
        bundled.register("made_up", shipment_of({}, "8.0", (3, 99)))
        assert message_of("made_up").endswith(
            f" Install one for Python {HERE} on the controller (python3 -m pip install Made-Up), or on this host."
        )

    @pytest.mark.parametrize("python", [(), (3,), (3, 8), sys.version_info[:2]])
    def test_the_python_is_new_enough(self, python: t.Sequence[int]) -> None:
        bundled.register("made_up", shipment_of({"made_up/__init__.py": ""}, "8.0", python))
        assert bundled.import_bundled("made_up").__name__ == "made_up"

    @pytest.mark.parametrize("source", ["import made_up.missing", "from json import nothing", "syntax error"])
    def test_the_shipped_one_cannot_be_imported(self, source: str) -> None:
        bundled.register("made_up", shipment_of({"made_up/__init__.py": source}))
        assert message_of("made_up").endswith(
            f"this host's Python {HERE} has none, and the controller sent 1.0, which cannot be imported here. Install"
            " Made-Up 1.0 or newer on this host, or repair its Python's standard library."
        )
        assert "made_up" not in sys.modules

    @pytest.mark.parametrize(
        "sent",
        ["x", "é", "UEsDBA==", base64.b64encode(zlib.compress(b"[1]")).decode()],
        ids=["base64", "text", "zip", "json"],
    )
    def test_the_option_holds_something_else(self, sent: str) -> None:
        bundled.register("made_up", sent)
        assert message_of("made_up").startswith("The option _bundled contains no valid package made_up.")


def test_the_last_tomlkit_for_python_3_8() -> None:
    assert bundled.PACKAGES["tomlkit"].last_for == {(3, 8): "0.13"}
    assert not bundled.PACKAGES["tomlkit"].accepts("0.11.8")
    assert bundled.PACKAGES["tomlkit"].accepts("0.12.0")


def test_pyyaml_since_5_1() -> None:
    assert not bundled.PACKAGES["yaml"].accepts("3.13")
    assert bundled.PACKAGES["yaml"].accepts("5.1")
    assert bundled.PACKAGES["yaml"].accepts("6.0.3")


@pytest.mark.parametrize(
    ("params", "sent"),
    [
        ({}, {}),
        ({"_bundled": None}, {}),
        ({"_bundled": {"yaml": "<yaml>"}}, {"yaml": "<yaml>"}),
        ({"_bundled": {"tomlkit": "<tomlkit>"}}, {"tomlkit": "<tomlkit>"}),
        ({"_bundled": {"tomlkit": "<tomlkit>", "yaml": "<yaml>"}}, {"tomlkit": "<tomlkit>", "yaml": "<yaml>"}),
    ],
)
def test_a_module_takes_what_it_was_sent(params: dict[str, t.Any], sent: dict[str, str]) -> None:
    load_bundled_packages(t.cast("t.Any", types.SimpleNamespace(params=params)))
    assert bundled._offered.get("yaml") == sent.get("yaml")
    assert tomlkit_loader._offered == [text for name, text in sent.items() if name == "tomlkit"]
