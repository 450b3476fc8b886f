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
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.yaml_document import parse
from ansible_collections.gpufleet.nvidia.plugins.module_utils._module import load_bundled_packages
from ansible_collections.gpufleet.nvidia.plugins.plugin_utils._packing import pack

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Absent:
    """Hides installed packages."""

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
    """A host that has no package and received none."""
    names = ("tomlkit", "yaml", "made_up")
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in names}
    monkeypatch.setattr(bundled, "_registered", {})
    monkeypatch.setattr(sys, "meta_path", [Absent(*names), *sys.meta_path])
    forget(*names)
    yield
    forget(*names)
    sys.modules.update(before)


def on_controller(name: str) -> str:
    """Return the text that a controller with the package sends."""
    hidden = sys.meta_path.pop(0)
    try:
        text = pack(name)
    finally:
        sys.meta_path.insert(0, hidden)
    assert text is not None
    return text


def send(sources: dict[str, str], version: str = "1.0", python: t.Sequence[int] = (3, 8)) -> None:
    text = json.dumps({"version": version, "python": list(python), "sources": sources})
    bundled.register({"made_up": base64.b64encode(zlib.compress(text.encode())).decode()})


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in the table, whose versions and sources the test chooses."""
    package = bundled.BundledPackage("Made-Up", (1, 0), {sys.version_info[:2]: "7.5"})
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


# -- a package from the controller ---------------------------------------------------------------------------------


@pytest.fixture
def tomlkit() -> t.Any:
    bundled.register({"tomlkit": on_controller("tomlkit")})
    return bundled.import_bundled("tomlkit")


def test_package_from_the_controller_works(tomlkit: t.Any) -> None:
    text = '# why\nversion = 2\n\n[plugins."io.containerd.grpc.v1.cri"]  # cri\n  a.b = { c = [1, "x"] }\n'
    document = tomlkit.parse(text)
    assert tomlkit.dumps(document) == text
    document["plugins"]["io.containerd.grpc.v1.cri"]["enable_cdi"] = True
    assert tomlkit.dumps(document) == text + "enable_cdi = true\n"
    assert bundled.import_bundled("tomlkit") is tomlkit


def test_modules_have_no_file(tomlkit: t.Any) -> None:
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tomlkit"}
    assert len(modules) > 8
    for name, module in modules.items():
        assert module.__spec__ is not None
        assert str(module.__spec__.origin).startswith("<controller>/tomlkit/"), name
        assert not hasattr(module, "__file__")
        assert module.__spec__.cached is None
    assert tomlkit.__path__ == []


def test_traceback_shows_the_source(tomlkit: t.Any) -> None:
    with pytest.raises(tomlkit.exceptions.ParseError) as caught:
        tomlkit.parse("a = ")
    frame = traceback.extract_tb(caught.value.__traceback__)[1]
    assert frame.filename == "<controller>/tomlkit/api.py"
    assert "parse" in (frame.line or "")


def test_restores_the_import_system() -> None:
    before = (list(sys.path), list(sys.meta_path), list(sys.path_hooks))
    bundled.register({"tomlkit": on_controller("tomlkit")})
    bundled.import_bundled("tomlkit")
    assert (sys.path, sys.meta_path, sys.path_hooks) == before


def test_pyyaml_works_without_its_compiled_module() -> None:
    with pytest.raises(MissingPackageError):
        parse("x.yaml", b"a: 1")
    bundled.register({"yaml": on_controller("yaml")})
    assert parse("x.yaml", b"a: [0:1, {b: 'c'}]") == {"a": ["0:1", {"b": "c"}]}
    with pytest.raises(ConfigurationError, match=r"x.yaml, line 1, column \d+: invalid YAML"):
        parse("x.yaml", b"a: 'b")
    yaml: t.Any = bundled.import_bundled("yaml")
    assert yaml.__with_libyaml__ is False
    assert yaml.__spec__.origin == "<controller>/yaml/__init__.py"


# -- the choice between host and controller ------------------------------------------------------------------------

SOURCES = {
    "made_up/__init__.py": "from made_up.part import value\n__version__ = '2.0'\n",
    "made_up/part/__init__.py": "from .leaf import value\n",
    "made_up/part/leaf.py": "value = 'café'\n",
}


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("version", ["1.0", "1.0.3", "1.1.dev1", "12"])
def test_prefers_the_package_of_the_host_without_unpacking(version: str) -> None:
    installed = install("made_up", version)
    bundled.register({"made_up": "not valid"})
    assert bundled.import_bundled("made_up") is installed


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("version", ["0.9", "0.99.7", "unknown", None])
def test_replaces_an_old_package_and_its_modules(version: str | None) -> None:
    installed = install("made_up", version)
    install("made_up.part", None)
    install("made_upper", None)
    send(SOURCES)
    loaded: t.Any = bundled.import_bundled("made_up")
    assert loaded is not installed
    assert loaded.value == "café"
    assert sys.modules.pop("made_upper").__spec__ is None


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("error", [ImportError, SyntaxError])
def test_replaces_a_broken_package(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_context: object) -> None:
            if name == "made_up":
                raise error(name)

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    send(SOURCES)
    assert bundled.import_bundled("made_up").__dict__["value"] == "café"


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("python", [(), (3,), (3, 8), sys.version_info[:2]])
def test_accepts_a_package_for_this_python(python: t.Sequence[int]) -> None:
    send({"made_up/__init__.py": ""}, "8.0", python)
    assert bundled.import_bundled("made_up").__name__ == "made_up"


def test_minimum_versions() -> None:
    assert bundled.PACKAGES["tomlkit"].last_for == {(3, 8): "0.13"}
    for name, old, minimum in (("tomlkit", "0.11.8", "0.12.0"), ("yaml", "3.13", "5.1")):
        assert not bundled.PACKAGES[name].accepts(old)
        assert bundled.PACKAGES[name].accepts(minimum)
    assert bundled.PACKAGES["yaml"].accepts("6.0.3")


# -- errors ---------------------------------------------------------------------------------------------------------

NEEDED = f"The Python package Made-Up 1.0 or newer is needed. This host's Python {HERE} has"


@pytest.mark.usefixtures("made_up")
def test_error_without_any_package() -> None:
    with pytest.raises(MissingPackageError) as caught:
        bundled.import_bundled("made_up")
    assert str(caught.value).startswith(f"{NEEDED} none, and the controller sent none. ")
    assert "(python3 -m pip install Made-Up)" in str(caught.value)
    # The action plugin reads this name.
    assert caught.value.details == {"needed": "made_up"}
    install("made_up", "0.9.1")
    assert message_of("made_up").startswith(f"{NEEDED} only 0.9.1, and the controller sent none.")


@pytest.mark.usefixtures("made_up")
def test_error_for_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    send({}, "8.0", (3, 99))
    with pytest.raises(NvidiaError) as caught:
        bundled.import_bundled("made_up")
    sent = f"{NEEDED} none, and the controller sent 8.0, which needs Python 3.99 or newer."
    assert str(caught.value).startswith(f"{sent} ")
    assert f" Python {HERE} on the controller (python3 -m pip install 'Made-Up==7.5.*')" in str(caught.value)
    # The same package, sent again, would not help.
    assert not caught.value.details
    monkeypatch.setitem(bundled.PACKAGES, "made_up", bundled.BundledPackage("Made-Up", (1, 0), {}))
    message = message_of("made_up")
    assert message.startswith(f"{sent} ")
    assert f" Python {HERE} on the controller (python3 -m pip install Made-Up)" in message


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("source", ["import made_up.missing", "from json import nothing", "syntax error"])
def test_error_for_a_package_that_cannot_be_imported(source: str) -> None:
    send({"made_up/__init__.py": source})
    message = message_of("made_up")
    assert message.startswith(f"{NEEDED} none, and the controller sent 1.0, ")
    assert " Install Made-Up 1.0 or newer on this host" in message
    assert "made_up" not in sys.modules


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    "sent",
    ["x", "é", "UEsDBA==", base64.b64encode(zlib.compress(b"[1]")).decode()],
    ids=["base64", "text", "zip", "json"],
)
def test_error_for_an_invalid_option(sent: str) -> None:
    bundled.register({"made_up": sent})
    assert message_of("made_up").startswith("The option _bundled contains no valid package made_up.")


@pytest.mark.parametrize("sent", [None, {}, {"tomlkit": "<tomlkit>", "yaml": "<yaml>"}])
def test_module_registers_the_packages_that_it_receives(sent: dict[str, str] | None) -> None:
    load_bundled_packages(t.cast("t.Any", types.SimpleNamespace(params={"_bundled": sent})))
    assert bundled._registered == (sent or {})
