# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.json_document import JsonDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.base import Action, ConfiguredState, LiveState
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.docker.plan import (
    DockerPlanner,
    configured_state,
    required_action,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines.request import RuntimeRequest
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import Unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.docker_files import (
    DAEMON_JSON,
    NVIDIA,
    REAL_FILES,
    File,
    runtime,
)
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.fake_files import FakeFiles

COLLECTION = Path(__file__).resolve().parents[6]
REQUESTS: dict[str, dict[str, t.Any]] = {
    "plain": {},
    "default": {"set_as_default": True},
    "not the default": {"set_as_default": False},
    "all": {"set_as_default": True, "enable_cdi": True, "extra_modes": ("cdi", "legacy"), "runtime_dir": "/opt/nv"},
    "no CDI": {"enable_cdi": False},
    "a mode as the main name": {"runtime_name": "nvidia-cdi", "set_as_default": True},
}


@pytest.mark.parametrize("content", REAL_FILES.values(), ids=REAL_FILES)
@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_real_files(content: str | None, asked: dict[str, t.Any]) -> None:
    file = File(content)
    original = file.content
    before = json.loads((content or "").lstrip("\ufeff").strip() or "{}")
    plan = file.present(**asked)
    once = file.content
    after = json.loads((once or b"").decode("utf-8-sig"))
    request = RuntimeRequest(**asked)
    for name, path in request.runtimes().items():
        assert after["runtimes"][name]["path"] == path
        assert plan.state.paths()[name] == path
    if asked.get("set_as_default"):
        assert after["default-runtime"] == request.runtime_name
    else:
        assert after.get("default-runtime") == before.get("default-runtime")
    if "enable_cdi" in asked:
        assert after["features"]["cdi"] is asked["enable_cdi"]
    assert foreign(after, request) == foreign(before, request)
    assert [name for name in after if name in before] == list(before)
    assert file.present(**asked).action is Action.NONE
    assert file.content == once
    if plan.files[0].changed:
        file.present(extra_modes=("legacy",), set_as_default=True)
        file.absent()
        assert file.content == original


def foreign(data: t.Any, request: RuntimeRequest) -> t.Any:
    """Return ``data`` without the entries that ``request`` may change."""
    data = json.loads(json.dumps(data))
    data.pop("default-runtime", None)
    for name, keys in (("features", ["cdi"]), ("runtimes", [])):
        table = data.get(name) or {}
        for key in keys:
            table.pop(key, None)
        data[name] = table
    for name in request.runtimes():
        data["runtimes"].setdefault(name, {}).pop("path", None)
    return data


# -- CDI by the version of Docker ------------------------------------------------------------------------------------

OFF, ON = '{"features": {"cdi": false}}', '{"features": {"cdi": true}}'


@pytest.mark.parametrize(
    ("version", "content", "flags", "written", "state"),
    [
        ((24, 0, 9), "{}", [], None, None),
        ((25, 0, 0), "{}", [], True, True),
        ((26, 1, 5), "{}", [], True, True),
        ((27, 5, 1), '{"features": {"buildkit": true}}', [], True, True),
        ((28, 1, 1), None, [], True, True),
        # From 28.2.0 on, CDI is enabled by default.
        ((28, 2, 0), "{}", [], None, True),
        ((29, 7, 0), None, [], None, True),
        (None, "{}", [], None, None),
        # Foreign settings are kept.
        ((26, 1, 5), OFF, [], False, False),
        ((29, 7, 0), OFF, [], False, False),
        ((26, 1, 5), ON, [], True, True),
        ((26, 1, 5), "{}", ["--feature", "cdi=true"], None, True),
        ((26, 1, 5), "{}", ["--feature", "buildkit=true"], None, False),
    ],
)
def test_cdi_auto(
    version: tuple[int, ...] | None, content: str | None, flags: list[str], written: bool | None, state: bool | None
) -> None:
    file = File(content, flags, version)
    plan = file.present(enable_cdi="auto")
    assert (file.data.get("features") or {}).get("cdi") is written
    assert (plan.state.cdi, plan.warnings) == (state, ())
    assert not file.present(enable_cdi="auto").files[0].changed
    # Without the option, the setting is kept.
    assert not file.present().files[0].changed
    file.absent()
    assert file.content == (content.encode() if content is not None else None)


def test_cdi_auto_after_upgrade() -> None:
    file = File('{"features": {"buildkit": true}}', version=(26, 1, 5))
    for version, asked, written in [
        ((26, 1, 5), False, False), ((26, 1, 5), "auto", True), (None, "auto", True), ((28, 5, 2), "auto", None),
        ((28, 5, 2), False, False), ((28, 5, 2), "auto", None),
    ]:  # fmt: skip
        file.version = version
        file.present(enable_cdi=asked)
        assert file.data["features"].get("cdi") is written


# -- foreign changes -------------------------------------------------------------------------------------------------


def test_absent_keeps_foreign_changes_between_two_runs() -> None:
    file = File('{"debug": true}')
    file.present()
    file.edit(labels=["a=b"])
    file.present(set_as_default=True)
    file.absent()
    assert file.data == {"debug": True, "labels": ["a=b"]}


def test_absent_restores_default_with_lone_surrogate() -> None:
    file = File(r'{"default-runtime": "\uD83d", "runtimes": {"\ud83d": {"path": "/k"}}}')
    file.present(set_as_default=True)
    file.content = (file.content or b"").replace(b"{", b'{"debug": true, ', 1)
    file.absent()
    assert file.content == rb'{"debug": true, "default-runtime": "\uD83d", "runtimes": {"\ud83d": {"path": "/k"}}}'


def test_absent_removes_undefined_default() -> None:
    file = File('{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}')
    file.present(set_as_default=True)
    file.edit(runtimes={"nvidia": runtime()})
    plan = file.absent()
    assert "default-runtime" not in file.data
    assert "no longer defined" in plan.warnings[0]


def test_absent_removes_own_file() -> None:
    file = File(None)
    file.present()
    file.edit(debug=True)
    file.edit(debug=None)
    file.absent()
    assert file.content is None


KATA_DEFAULT = {"default-runtime": "kata", "runtimes": {"kata": runtime("/k")}}
OLD_NVIDIA = {"runtimes": {"nvidia": runtime("/old/nvidia-container-runtime", runtimeArgs=[])}}
CHANGED_ENTRIES = {"features": {"buildkit": True, "cdi": False}, "runtimes": {"nvidia": runtime("/other")}}


@pytest.mark.parametrize(
    ("before", "asked", "edit", "after"),
    [
        (
            {"debug": True},
            {"set_as_default": True, "enable_cdi": True},
            {"labels": ["x"]},
            {"debug": True, "labels": ["x"]},
        ),
        (None, {}, {"debug": True}, {"debug": True}),
        (KATA_DEFAULT, {"set_as_default": True}, {"debug": True}, {**KATA_DEFAULT, "debug": True}),
        (OLD_NVIDIA, {}, {"debug": True}, {**OLD_NVIDIA, "debug": True}),
        # Entries of this collection that others changed are kept, except additions to its own runtimes.
        ({"features": {"buildkit": True}}, {"enable_cdi": True}, CHANGED_ENTRIES, CHANGED_ENTRIES),
        ({}, {}, {"runtimes": {"nvidia": runtime(runtimeArgs=["-x"])}}, {}),
    ],
)
def test_absent_keeps_foreign_changes(before: t.Any, asked: dict[str, t.Any], edit: t.Any, after: t.Any) -> None:
    file = File(None if before is None else json.dumps(before))
    file.present(**asked)
    file.edit(**edit)
    file.absent()
    assert file.data == after


def test_absent_does_not_restore_removed_file() -> None:
    file = File('{"debug": true}')
    file.present()
    file.content = None
    file.absent()
    assert file.content is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {
                "default-runtime": "nvidia",
                "runtimes": {"nvidia": runtime("nvidia-container-runtime"), "k": runtime("/k")},
            },
            {"runtimes": {"k": runtime("/k")}},
        ),
        ({"runtimes": {"gpu": runtime("/opt/x/nvidia-container-runtime.cdi")}, "debug": True}, {"debug": True}),
        ({"runtimes": {"l": runtime("/x/nvidia-container-runtime.legacy")}}, {}),
        ({"runtimes": {"nvidia": runtime("/x/nvidia-container-runtime-hook")}}, None),
        ({"runtimes": {"nvidia": runtime("/etc/docker-runtimes.d/nvidia")}, "default-runtime": "nvidia"}, None),
        ({"features": {"cdi": True}, "runtimes": {}}, None),
    ],
)
def test_absent_without_record_removes_only_nvidia_programs(before: t.Any, after: t.Any) -> None:
    file = File(json.dumps(before))
    original = file.content
    file.absent()
    assert file.data == (before if after is None else after)
    assert (file.content == original) is (after is None)


# -- declarations ----------------------------------------------------------------------------------------------------


def test_removes_runtimes_that_are_no_longer_requested() -> None:
    file = File('{"runtimes": {"kata": {"path": "/k"}}}')
    file.present(extra_modes=("cdi", "legacy"))
    plan = file.present(extra_modes=("cdi",))
    assert sorted(file.data["runtimes"]) == ["kata", "nvidia", "nvidia-cdi"]
    assert plan.action is Action.RELOAD
    file.present(runtime_name="gpu")
    assert sorted(file.data["runtimes"]) == ["gpu", "kata"]


def test_default_of_removed_runtime() -> None:
    file = File('{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}')
    file.present(set_as_default=True)
    plan = file.present(runtime_name="gpu")
    assert file.data["default-runtime"] == "kata"
    assert "The default is now kata" in plan.warnings[0]


@pytest.mark.parametrize("previous", [None, "kata", "runsc.gvisor.v1"])
def test_set_as_default_false_restores_recorded_default(previous: str | None) -> None:
    before: dict[str, t.Any] = {"runtimes": {"kata": {"path": "/k"}}}
    if previous:
        before["default-runtime"] = previous
    file = File(json.dumps(before))
    file.present(set_as_default=True)
    file.present()
    assert file.data["default-runtime"] == "nvidia"
    file.present(set_as_default=False)
    assert file.data.get("default-runtime") == previous


def test_name_with_a_dot() -> None:
    """dockerd takes it for that of a shim, except if the file defined it."""
    file = File('{"default-runtime": "a.shim"}')
    file.present(set_as_default=True)
    file.edit(debug=True)
    file.absent()
    assert file.data == {"default-runtime": "a.shim", "debug": True}
    file.present(runtime_name="my.nvidia", set_as_default=True)
    file.present()
    assert file.data["default-runtime"] == "a.shim"


def test_set_as_default_false_keeps_foreign_default() -> None:
    file = File('{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/x"}}}')
    file.present(set_as_default=False)
    assert file.data["default-runtime"] == "nvidia"


def test_same_program_keeps_its_path() -> None:
    content = b'{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'
    context = FakeFiles({DAEMON_JSON: content}).context(DAEMON_JSON)._replace(same_program=lambda _one, _other: True)
    assert not DockerPlanner(context).present(RuntimeRequest()).files[0].changed


# -- what a change needs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "before", "asked", "action"),
    [
        (None, {}, {}, Action.RELOAD),
        (None, {}, {"set_as_default": True}, Action.RELOAD),
        (None, {"runtimes": {"nvidia": runtime()}}, {"set_as_default": True}, Action.RELOAD),
        (None, {"runtimes": {"nvidia": runtime()}}, {}, Action.NONE),
        (None, {"runtimes": {"nvidia": runtime("/old")}}, {}, Action.RELOAD),
        (None, {"runtimes": {"nvidia": runtime()}, "default-runtime": "kata"}, {"set_as_default": True}, Action.RELOAD),
        # If the version is unknown, it is unknown whether CDI is enabled by default.
        (None, {}, {"enable_cdi": True}, Action.RESTART),
        (None, {}, {"enable_cdi": False}, Action.RESTART),
        ((26, 1, 5), {}, {"enable_cdi": True}, Action.RESTART),
        ((26, 1, 5), {}, {"enable_cdi": False}, Action.RELOAD),
        ((28, 5, 2), {}, {"enable_cdi": True}, Action.RELOAD),
        ((28, 5, 2), {}, {"enable_cdi": False}, Action.RESTART),
        ((28, 5, 2), {"cdi-spec-dirs": [], "features": {"cdi": False}}, {"enable_cdi": True}, Action.RELOAD),
        ((20, 10, 24), {}, {"enable_cdi": True}, Action.RELOAD),
        (None, {"features": {"cdi": True}}, {"enable_cdi": True}, Action.RELOAD),
        (None, {"features": {"cdi": True}}, {"enable_cdi": False}, Action.RESTART),
    ],
)
def test_action_of_present(
    version: tuple[int, ...] | None, before: t.Any, asked: dict[str, t.Any], action: Action
) -> None:
    assert File(json.dumps(before), version=version).present(**asked).action is action


def test_docker_without_cdi_gets_a_warning() -> None:
    (warning,) = File(None, version=(20, 10, 24)).present(enable_cdi=True).warnings
    assert "20.10.24 does not support CDI" in warning


@pytest.mark.parametrize(
    ("original", "asked", "action"),
    [
        (None, {}, Action.RESTART),
        ("{}", {}, Action.RESTART),
        ('{"runtimes": null}', {}, Action.RESTART),
        ('{"runtimes": {}}', {}, Action.RELOAD),
        ('{"runtimes": {"kata": {"path": "/k"}}}', {}, Action.RELOAD),
        ('{"runtimes": {"kata": {"path": "/k"}}}', {"set_as_default": True}, Action.RESTART),
        ('{"runtimes": {}, "default-runtime": "runc"}', {"set_as_default": True}, Action.RELOAD),
        ('{"runtimes": {}, "default-runtime": "runc"}', {"enable_cdi": True}, Action.RESTART),
    ],
)
def test_action_of_absent(original: str | None, asked: dict[str, t.Any], action: Action) -> None:
    file = File(original)
    file.present(**asked)
    assert file.absent().action is action


def test_action_of_changed_default() -> None:
    registered = {"runtimes": {"kata": runtime("/k"), "nvidia": runtime()}}
    named = File(json.dumps({**registered, "default-runtime": "kata"}))
    named.present(set_as_default=True)
    assert named.present(set_as_default=False).action is Action.RELOAD
    unnamed = File(json.dumps(registered))
    unnamed.present(set_as_default=True)
    assert unnamed.present(set_as_default=False).action is Action.RESTART


@pytest.mark.parametrize(
    ("live", "state", "action"),
    [
        ({}, ConfiguredState(), Action.NONE),
        ({}, ConfiguredState({"nvidia": runtime()}), Action.RELOAD),
        ({"runtimes": {"nvidia": NVIDIA}}, ConfiguredState({"nvidia": runtime()}), Action.NONE),
        ({"runtimes": {"nvidia": NVIDIA}}, ConfiguredState({"nvidia": runtime(runtimeArgs=[])}), Action.NONE),
        ({"runtimes": {"nvidia": "/old"}}, ConfiguredState({"nvidia": runtime()}), Action.RELOAD),
        ({"runtimes": {"nvidia": NVIDIA}}, ConfiguredState(), Action.RELOAD),
        ({"runtimes": {"nvidia": NVIDIA}}, ConfiguredState(lists_runtimes=False), Action.RESTART),
        ({"runtimes": {"nvidia": NVIDIA}}, ConfiguredState(flagged_runtimes=("nvidia",)), Action.NONE),
        ({"runtimes": {"io.containerd.runc.v2": "runc"}}, ConfiguredState(), Action.NONE),
        ({"runtimes": {"kata": ""}}, ConfiguredState({"kata": {"runtimeType": "io.containerd.kata.v2"}}), Action.NONE),
        ({"default_runtime": "nvidia"}, ConfiguredState(), Action.RESTART),
        ({"default_runtime": "nvidia"}, ConfiguredState(default_runtime="runc"), Action.RELOAD),
        # dockerd 20.10 crashes on a reload if the file no longer has the default runtime that it uses.
        ({"default_runtime": "nvidia", "runtimes": {"nvidia": NVIDIA}}, ConfiguredState(), Action.RESTART),
        ({}, ConfiguredState(default_runtime="nvidia"), Action.RELOAD),
        ({}, ConfiguredState(default_runtime="runc"), Action.NONE),
        ({"cdi": False}, ConfiguredState(cdi=True), Action.RESTART),
        ({"cdi": True}, ConfiguredState(cdi=False), Action.RESTART),
        ({"cdi": True}, ConfiguredState(), Action.NONE),
        ({"cdi": None}, ConfiguredState(cdi=True), Action.NONE),
        # The file overrides built-in runtimes and those of the unit.
        (
            {"runtimes": {"io.containerd.kata.v2": "/k"}},
            ConfiguredState({"io.containerd.kata.v2": runtime("/k")}),
            Action.NONE,
        ),
        (
            {"runtimes": {"io.containerd.kata.v2": "/old"}},
            ConfiguredState({"io.containerd.kata.v2": runtime("/k")}),
            Action.RELOAD,
        ),
        (
            {"runtimes": {"nvidia": "/old"}},
            ConfiguredState({"nvidia": runtime()}, flagged_runtimes=("nvidia",)),
            Action.RELOAD,
        ),
        (
            {"runtimes": {"nvidia": NVIDIA}},
            ConfiguredState({"nvidia": runtime()}, flagged_runtimes=("nvidia",)),
            Action.NONE,
        ),
    ],
)
def test_required_action(live: dict[str, t.Any], state: ConfiguredState, action: Action) -> None:
    known: dict[str, t.Any] = {"runtimes": {}, "default_runtime": "runc", "cdi": False, **live}
    known["runtimes"] = {"runc": "runc", **known["runtimes"]}
    live_state = LiveState(version="26.1.5", live_restore=False, running_containers=0, **known)
    assert required_action(live_state, state) is action


@pytest.mark.parametrize(
    ("content", "flags", "version", "cdi"),
    [
        # Measured with dockerd 28.5.2: it reports no CDISpecDirs in the cases with False.
        ({}, [], (28, 5, 2), True),
        ({"cdi-spec-dirs": []}, [], (28, 5, 2), False),
        ({"cdi-spec-dirs": [""]}, [], (28, 5, 2), False),
        ({"cdi-spec-dirs": [""], "features": {"cdi": True}}, [], (28, 5, 2), False),
        ({"cdi-spec-dirs": [], "features": {"cdi": True}}, [], (28, 5, 2), False),
        ({"cdi-spec-dirs": ["/etc/cdi"]}, [], (28, 5, 2), True),
        ({"cdi-spec-dirs": None}, [], (28, 5, 2), True),
        ({}, ["--feature", "cdi=false"], (28, 5, 2), False),
        ({}, ["--feature=cdi=true"], (26, 1, 5), True),
        ({}, ["--feature=cdi"], (26, 1, 5), True),
        ({}, ["--feature=buildkit=false"], (28, 5, 2), True),
        ({}, ["--feature=cdi=false"], None, False),
        ({}, ["--cdi-spec-dir="], (28, 5, 2), False),
        ({}, ["--cdi-spec-dir=/etc/cdi"], (28, 5, 2), True),
        ({}, ["--cdi-spec-dir=", "--cdi-spec-dir=/etc/cdi"], (28, 5, 2), True),
        ({"cdi-spec-dirs": []}, [], None, False),
        ({"cdi-spec-dirs": []}, [], (20, 10, 24), None),
        ({}, [], (26, 1, 5), False),
        ({}, [], None, None),
    ],
)
def test_configured_cdi(content: t.Any, flags: list[str], version: tuple[int, ...] | None, cdi: bool | None) -> None:
    document = JsonDocument.from_bytes(DAEMON_JSON, json.dumps(content).encode())
    unit = Unit("docker.service", "/lib/docker.service", arguments=("/usr/bin/dockerd", *flags))
    state = configured_state(document, unit, version)
    assert state.cdi is cdi
    live = LiveState("28.5.2", {"runc": "runc"}, "runc", cdi=cdi)
    assert required_action(live, state) is Action.NONE


@pytest.mark.parametrize(
    ("content", "flags", "folders"),
    [
        ({}, [], None),
        ({"cdi-spec-dirs": None}, [], None),
        ({"cdi-spec-dirs": ["/opt/cdi", "/etc/cdi"]}, [], ("/opt/cdi", "/etc/cdi")),
        ({"cdi-spec-dirs": []}, [], ()),
        ({}, ["--cdi-spec-dir=", "--cdi-spec-dir", "/opt/cdi"], ("/opt/cdi",)),
        ({}, ["--cdi-spec-dir="], ()),
    ],
)
def test_directories_of_specifications(content: t.Any, flags: list[str], folders: tuple[str, ...] | None) -> None:
    document = JsonDocument.from_bytes(DAEMON_JSON, json.dumps(content).encode())
    unit = Unit("docker.service", "/lib/docker.service", arguments=("/usr/bin/dockerd", *flags))
    assert configured_state(document, unit, (28, 5, 2)).cdi_folders == folders


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"runtimes": []}', "line 1, column 14: runtimes has the type array, but dockerd expects object"),
        ('{\n"runtimes": {"nvidia": "x"}}', "line 2, column 24: runtimes.nvidia has the type string"),
        ('{"runtimes": {"nvidia": {"path": 1}}}', "runtimes.nvidia.path has the type number"),
        ('{"default-runtime": {}}', "default-runtime has the type object, but dockerd expects string"),
        ('{"features": true}', "features has the type boolean, but dockerd expects object"),
        ('{"features": {"cdi": "true"}}', "features.cdi has the type string, but dockerd expects boolean"),
        ('{"runtimes": {"nvidia": {"runtimeType": "io.containerd.x.v1"}}}', "has a runtimeType"),
        ('{"runtimes": {}, "runtimes": {}}', "is used twice"),
        ("[]", "the file contains an array, but an object is expected"),
        ('{"a": 1,}', "comma is not allowed after the last entry"),
    ],
)
def test_refuses_invalid_files(content: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        File(content).present(enable_cdi=True)
    assert message in str(caught.value)
    assert DAEMON_JSON in str(caught.value)


@pytest.mark.parametrize(
    ("content", "flags", "asked", "message"),
    [
        ("{}", ["--default-runtime=kata"], {"set_as_default": True}, r"--default-runtime kata.*Remove the flag"),
        ('{"default-runtime": "runc"}', ["--default-runtime", "nvidia"], {"set_as_default": True}, "runtime nvidia"),
        ("{}", ["--feature", "buildkit=true"], {"enable_cdi": True}, "--feature buildkit=true"),
    ],
)
def test_refuses_setting_in_unit_and_file(content: str, flags: list[str], asked: t.Any, message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        File(content, flags).present(**asked)


def test_default_of_unit_is_not_written() -> None:
    file = File("{}", ["--default-runtime=nvidia", "--add-runtime=nvidia=/usr/bin/x"])
    plan = file.present(set_as_default=True)
    assert "default-runtime" not in file.data
    assert plan.state.default_runtime == "nvidia"
    assert "the unit already starts dockerd with" in plan.warnings[0]


def test_refuses_to_remove_the_default_runtime_of_the_unit() -> None:
    file = File("{}", ["--default-runtime=nvidia"])
    file.present()
    with pytest.raises(NvidiaError, match="cannot be removed from"):
        file.absent()


@pytest.mark.parametrize(
    ("asked", "flag", "key"),
    [({"set_as_default": True}, "--default-runtime=kata", "default-runtime"),
     ({"enable_cdi": True}, "--feature=buildkit=true", "features")],
)  # fmt: skip
def test_warns_about_later_flag(asked: dict[str, t.Any], flag: str, key: str) -> None:
    file = File("{}")
    assert file.present(**asked).warnings == ()
    file.unit = file.unit._replace(arguments=("/usr/bin/dockerd", flag))
    plan = file.present(**asked)
    assert not plan.files[0].changed
    (warning,) = plan.warnings
    assert flag.replace("=", " ", 1) in warning
    assert "does not start with a setting in both places" in warning
    assert f"Remove the flag from the unit, or {key} from the file" in warning


def test_ignores_other_flags() -> None:
    file = File("{}", ["--default-runtime=kata", "--add-runtime=nvidia=/x"])
    file.present()
    assert "nvidia" in file.data["runtimes"]


def test_file_of_geerlingguy_docker() -> None:
    """The page docs/geerlingguy-docker.md lists the entries with which nothing has to be changed."""
    page = (COLLECTION / "docs/geerlingguy-docker.md").read_text(encoding="utf-8")
    (variables,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "daemon_options" in block]
    options = yaml.safe_load(variables)["docker_daemon_options"]
    # The role writes the file with the filter to_nice_json.
    written = json.dumps(options, indent=4, sort_keys=True)
    file = File(written)
    plan = file.present(enable_cdi=True)
    assert (file.content, plan.files[0].changed) == (written.encode(), False)
    del options["runtimes"]
    assert File(json.dumps(options)).present(enable_cdi=True).files[0].changed
