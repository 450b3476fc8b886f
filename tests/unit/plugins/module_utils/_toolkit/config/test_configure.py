# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import difflib
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import ConfigurationError, NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.records import OriginalFile
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config.configure import SettingsRequest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_configs import (
    BY_HAND,
    DEFAULT,
    DOTTED,
    OLD,
    PATH,
    Config,
    written,
)

CLI, RUNTIME = "nvidia-container-cli", "nvidia-container-runtime"
FEATURE = "features.disable-cuda-compat-lib-hook"


def difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


# The file, the settings, and the changed lines.
CHANGES: dict[str, tuple[str, dict[str, t.Any], str]] = {
    "a default in a comment": (DEFAULT, {f"{CLI}.no-cgroups": True}, "+no-cgroups = true"),
    "the same value as in the comment": (
        DEFAULT,
        {f"{CLI}.no-cgroups": False},
        "+no-cgroups = false",
    ),
    "a value": (DEFAULT, {f"{RUNTIME}.mode": "cdi"}, '-mode = "auto"\n+mode = "cdi"'),
    "what is there": (DEFAULT, {f"{RUNTIME}.mode": "auto", f"{CLI}.debug": None}, ""),
    "two of one name": (
        DEFAULT,
        {f"{CLI}.debug": "/a", f"{RUNTIME}.debug": "/b"},
        '+debug = "/a"\n+debug = "/b"',
    ),
    "a new table": (DEFAULT, {FEATURE: True}, "+\n+[features]\n+disable-cuda-compat-lib-hook = true"),
    "an array over lines": (OLD, {f"{RUNTIME}.runtimes": ["docker-runc", "crun"]}, '-    "runc",\n+    "crun",'),
    "tables that are missing": (
        OLD,
        {f"{RUNTIME}.modes.cdi.spec-dirs": ["/etc/cdi"]},
        '+\n+    [nvidia-container-runtime.modes.cdi]\n+    spec-dirs = ["/etc/cdi"]',
    ),
    "a header in a comment": (
        BY_HAND,
        {FEATURE: True},
        "+\n+  [features]\n+    disable-cuda-compat-lib-hook = true",
    ),
    "below a comment with a remark": (BY_HAND, {f"{CLI}.debug": "/a"}, '+    debug = "/a"'),
    "dotted": (DOTTED, {f"{CLI}.debug": "/a"}, f'+{CLI}.debug = "/a"'),
    "in one line": (
        DOTTED,
        {f"{RUNTIME}.mode": "cdi"},
        (
            "-nvidia-container-runtime = { mode = 'legacy', log-level = 'warning' }\n"
            "+nvidia-container-runtime = { mode = \"cdi\", log-level = 'warning' }"
        ),
    ),
    "null": (
        written({f"{CLI}.no-cgroups": True, f"{RUNTIME}.mode": "cdi"}),
        {f"{CLI}.no-cgroups": None, f"{RUNTIME}.mode": None},
        '-no-cgroups = true\n-mode = "cdi"\n+mode = "auto"',
    ),
    "null of what says its default": (
        written({f"{CLI}.no-cgroups": False}),
        {f"{CLI}.no-cgroups": None},
        "-no-cgroups = false",
    ),
    "null of what has no default": (
        written({FEATURE: True}),
        {FEATURE: None},
        "-disable-cuda-compat-lib-hook = true",
    ),
}


@pytest.mark.parametrize(("before", "requested", "expected"), list(CHANGES.values()), ids=list(CHANGES))
def test_present_then_absent_restores_the_file(before: str, requested: dict[str, t.Any], expected: str) -> None:
    config = Config(before)
    config.present(requested)
    # The file determines the quotes of a new string.
    assert difference(before, config.text).replace("'", '"') == expected.replace("'", '"')
    config.absent()
    assert config.text == before


def test_new_settings_follow_the_order_of_the_packages_file() -> None:
    requested = {"nvidia-ctk.path": "/x", FEATURE: True, f"{CLI}.path": "/y", "disable-require": True}
    config, other = Config(""), Config("")
    config.present(requested)
    other.present(dict(reversed(list(requested.items()))))
    assert config.text == other.text
    assert config.text.index("[features]") < config.text.index(f"[{CLI}]") < config.text.index("[nvidia-ctk]")


def test_resets_ldconfig_to_the_default_of_the_host() -> None:
    config = Config(written({f"{CLI}.ldconfig": "@/opt/ldconfig"}), {f"{CLI}.ldconfig": "@/sbin/ldconfig.real"})
    plan = config.present({f"{CLI}.ldconfig": None})
    assert 'ldconfig = "@/sbin/ldconfig.real"' in config.text
    assert plan.settings[f"{CLI}.ldconfig"] == "@/sbin/ldconfig.real"


def test_resets_the_user_of_suse_to_the_line_of_the_packages() -> None:
    user, default = f"{CLI}.user", "root:video"
    content = DEFAULT.replace(f'#user = "{default}"', f'user = "{default}"')
    assert content != DEFAULT
    for defaults, text in (({user: default}, content), ({}, content.replace(f'user = "{default}"\n', ""))):
        config = Config(content, defaults)
        config.present({user: "1000:44"})
        plan = config.present({user: None})
        assert config.text == text
        assert plan.settings[user] == defaults.get(user)
    # Without the packages' file there is no line to keep, but the toolkit still has this default.
    config = Config(None, {user: default})
    config.present({user: "1000:44", "disable-require": True})
    assert config.present({user: None}).settings[user] == default
    assert "user" not in config.text


def test_reports_changed_keys_and_effective_settings() -> None:
    plan = Config().present({f"{RUNTIME}.mode": "cdi", f"{CLI}.debug": "/a", f"{RUNTIME}.log-level": "info"})
    assert plan.changed_keys == (f"{CLI}.debug", f"{RUNTIME}.mode")
    assert plan.settings[f"{RUNTIME}.mode"] == "cdi"
    assert plan.settings["nvidia-ctk.path"] == "nvidia-ctk"
    assert plan.warnings == ()


def test_debug_and_reset() -> None:
    config = Config(OLD)
    plan = config.present(debug=True)
    assert plan.changed_keys == (f"{CLI}.debug", f"{RUNTIME}.debug", f"{RUNTIME}.log-level")
    assert difference(OLD, config.text) == (
        '+debug = "/var/log/nvidia-container-toolkit.log"\n-log-level = "info"\n'
        '+debug = "/var/log/nvidia-container-runtime.log"\n+log-level = "debug"'
    )
    assert not config.present({}).file.changed
    config.present(debug=False)
    assert (config.text, config.record) == (OLD, None)


LOGS = {
    f"{CLI}.debug": "/var/log/nvidia-container-toolkit.log",
    f"{RUNTIME}.debug": "/var/log/nvidia-container-runtime.log",
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({f"{RUNTIME}.log-level": "warning", f"{RUNTIME}.debug": "/data/runtime.log"}, None),
        ({f"{RUNTIME}.log-level": "debug"}, {}),
        ({f"{RUNTIME}.log-level": "trace", f"{CLI}.debug": "/data/cli.log"}, {f"{CLI}.debug": "/data/cli.log"}),
        (LOGS, {}),
    ],
)
def test_debug_false_keeps_other_values_of_the_user(before: dict[str, t.Any], after: dict[str, t.Any] | None) -> None:
    config, wanted = Config(written(before)), Config(written(before if after is None else after)).settings
    for debug in (False, True, False, False):
        config.present(debug=debug)
        assert debug or config.settings == wanted
    assert (config.record is None) == (after is None)
    assert not config.file.present(SettingsRequest({}, debug=False, exclusive=True)).file.changed
    config.absent()
    assert config.text == written(before)


def test_debug_false_resets_own_values() -> None:
    before = written({f"{RUNTIME}.log-level": "error"})
    config = Config(before)
    config.present({f"{RUNTIME}.log-level": "trace", f"{CLI}.debug": "/a"})
    config.present(debug=False)
    assert (config.text, config.record) == (before, None)


# -- exclusive ---------------------------------------------------------------------------------------------------------


def test_exclusive_resets_unnamed_settings() -> None:
    config = Config()
    config.present({f"{CLI}.no-cgroups": True, FEATURE: True})
    config.present({f"{RUNTIME}.mode": "cdi"})
    assert config.settings[f"{CLI}.no-cgroups"] is True
    config.present({f"{RUNTIME}.mode": "cdi"}, exclusive=True)
    assert config.text == written({f"{RUNTIME}.mode": "cdi"})
    config.present({}, exclusive=True)
    assert (config.text, config.record) == (DEFAULT, None)


def test_exclusive_keeps_foreign_settings() -> None:
    before = written({f"{CLI}.user": "x:y"})
    config = Config(before)
    config.present({f"{CLI}.root": "/x", f"{CLI}.debug": "/a"})
    # A value that was changed since is foreign.
    config.content = (config.content or b"").replace(b'"/a"', b'"/b"')
    config.present({}, exclusive=True)
    assert config.text == before.replace('toolkit.log"\n', 'toolkit.log"\ndebug = "/b"\n', 1)


def test_equal_foreign_values_are_not_recorded() -> None:
    config = Config()
    config.present({"disable-require": True})
    config.content = (config.content or b"").replace(b'mode = "auto"', b'mode = "cdi"')
    config.present({"disable-require": True, f"{RUNTIME}.mode": "cdi", f"{RUNTIME}.log-level": "debug"})
    config.absent()
    assert config.text == DEFAULT.replace('mode = "auto"', 'mode = "cdi"')


def test_restores_comments_with_the_last_own_setting() -> None:
    before = (
        "[features]\n# a\ndisable-cuda-compat-lib-hook = true # CVE, ask Ann\nignore-imex-channel-requests = false\n"
    )
    config = Config(before)
    config.present({FEATURE: None}, exclusive=True)
    plan = config.present({"features.ignore-imex-channel-requests": False}, exclusive=True)
    assert plan.changed_keys == (FEATURE,)
    assert (config.text, config.record) == (before, None)
    assert not config.absent().file.changed


def test_reset_settings_are_recorded() -> None:
    before = written({f"{CLI}.user": "x:y", f"{RUNTIME}.mode": "legacy"})
    config = Config(before)
    config.present({f"{CLI}.user": None, f"{RUNTIME}.mode": None})
    assert config.text == DEFAULT.replace('#user = "root:video"\n', "")
    config.content = b"# foreign\n" + (config.content or b"")
    config.present({f"{RUNTIME}.mode": None}, exclusive=True)
    assert config.settings == Config(written({f"{CLI}.user": "x:y"})).settings
    config.absent()
    assert config.settings == Config(before).settings
    assert config.text.startswith("# foreign\n")


# Earlier releases of the collection uncommented a setting instead of writing it below its comment.
UNCOMMENTED = OLD.replace("#no-cgroups = false", "no-cgroups = true")


@pytest.mark.parametrize(
    "requested", [{f"{CLI}.no-cgroups": True}, {f"{CLI}.no-cgroups": False}, {f"{RUNTIME}.mode": "cdi"}]
)
def test_restores_files_of_earlier_releases(requested: dict[str, t.Any]) -> None:
    config = Config(UNCOMMENTED)
    record = OriginalFile("toolkit", PATH, OLD.encode(), 0, 0, 0o644, main=PATH)
    config.record = record.after_write(OLD.encode(), config.content, {(CLI, "no-cgroups"): True})
    assert config.present(requested).file.changed == (requested != {f"{CLI}.no-cgroups": True})
    config.absent()
    assert config.text == OLD


def test_removes_only_the_setting_from_an_edited_file() -> None:
    config = Config("# foreign\n" + UNCOMMENTED)
    record = OriginalFile("toolkit", PATH, OLD.encode(), 0, 0, 0o644, main=PATH)
    config.record = record.after_write(OLD.encode(), UNCOMMENTED.encode(), {(CLI, "no-cgroups"): True})
    config.absent()
    assert config.text == "# foreign\n" + OLD.replace("#no-cgroups = false\n", "")


# -- absent ------------------------------------------------------------------------------------------------------------


NEWER = {"nvidia-ctk.path": "/opt/ctk", f"{RUNTIME}.modes.legacy.cuda-compat-mode": "mount", f"{CLI}.user": "1000:44"}


@pytest.mark.parametrize("exclusive", [True, False])
def test_keeps_settings_that_newer_packages_wrote(exclusive: bool) -> None:
    config = Config(OLD.replace('#user = "root:video"\n', ""))
    config.present({f"{RUNTIME}.log-level": "debug"})
    config.rewrite()
    config.content = upgraded = config.text.replace(f"[{RUNTIME}.modes]\n", f"[{RUNTIME}.modes] # Ann's\n").encode()
    config.present({f"{RUNTIME}.log-level": "debug", **NEWER})
    config.present(
        {f"{RUNTIME}.log-level": "debug", **({} if exclusive else dict.fromkeys(NEWER))}, exclusive=exclusive
    )
    assert config.text == upgraded.decode()
    config.present(NEWER)
    config.absent()
    assert config.text == upgraded.decode().replace('log-level = "debug"', 'log-level = "info"')


@pytest.mark.parametrize(
    ("before", "key", "value"),
    [
        ("features = {}\n", FEATURE, True),
        ("features.ignore-imex-channel-requests = true\n", FEATURE, True),
        (f"{CLI} = {{ debug = '/x' }}\n", f"{CLI}.no-cgroups", True),
    ],
)
def test_resets_settings_in_another_layout(before: str, key: str, value: t.Any) -> None:
    config = Config(before)
    config.present({key: value})
    outer, name = key.split(".")
    config.content = f"[{outer}]\n{name} = true\n".encode()
    config.absent()
    assert config.text == f"[{outer}]\n"
    assert config.record is None


def test_creates_and_removes_own_file() -> None:
    config = Config(None)
    plan = config.present({f"{CLI}.no-cgroups": True, "disable-require": False})
    assert config.text == "disable-require = false\n\n[nvidia-container-cli]\nno-cgroups = true\n"
    assert plan.file.before is None
    config.present({f"{CLI}.no-cgroups": None, "disable-require": None})
    assert (config.content, config.record) == (None, None)


def test_does_not_recreate_a_removed_file() -> None:
    config = Config(written({f"{CLI}.user": "x:y"}))
    config.present({f"{CLI}.user": None})
    config.content = None
    assert not config.file.present(SettingsRequest({}, exclusive=True)).file.changed
    plan = config.absent()
    assert (config.content, config.record, plan.file.changed) == (None, None, False)


# -- errors and warnings -----------------------------------------------------------------------------------------------


def test_create_false_requires_the_file() -> None:
    config = Config(None)
    with pytest.raises(NvidiaError, match=f"{PATH} does not exist, and create is false"):
        config.present({"disable-require": True}, create=False)
    for request in ({}, {"disable-require": None}):
        assert not config.present(request, create=False).file.changed
    assert not Config().present({"disable-require": False}, create=False).file.changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nb = \n", "line 2, column"),
        ("a = 1\na = 2\n", "line 2, column"),
        (
            "nvidia-container-cli = 5\n",
            "line 1, column 1: nvidia-container-cli is a number, but a table is expected",
        ),
        (
            "[nvidia-container-cli.debug]\nx = 1\n",
            "line 1, column 1: nvidia-container-cli.debug is a table, but must be",
        ),
        ("[foo]\nbar = 2 # mine\n", "line 1, column 1: foo is a table, but must be a value. Remove the table."),
    ],
)
def test_rejects_invalid_files_with_position(text: str, message: str) -> None:
    config = Config(text)
    with pytest.raises(ConfigurationError) as raised:
        config.present({f"{CLI}.debug": "/a", "foo": 1}, allow_unknown=True)
    assert message in str(raised.value)
    assert config.text == text


def test_keeps_comments_in_values() -> None:
    text = f'[{CLI}]\nenvironment = [\n  # the proxy\n  "A=1", # one\n]\n'
    config = Config(text)
    with pytest.raises(ConfigurationError, match=r"line 2, column 1: .*environment would delete the comment"):
        config.present({f"{CLI}.environment": ["B=1"]})
    config.present({f"{CLI}.environment": ["A=1", "B=1"]})
    assert config.text == text.replace('"A=1", # one\n', '"A=1", # one\n  "B=1",\n')


def test_warns_about_invalid_values_with_position() -> None:
    config = Config(
        f'swarm-resource = 5\n[{CLI}]\nno-cgroups = "yes"\n[{RUNTIME}]\nmodes = 1\nruntimes = ["runc", 1]\n'
    )
    warnings = config.present({}).warnings
    assert [warning.partition(". Correct the value")[0] for warning in warnings] == [
        f"{PATH}, line 5, column 1: {RUNTIME}.modes is 1, but must be a table",
        f"{PATH}, line 1, column 1: swarm-resource is 5, but must be a string",
        f"{PATH}, line 3, column 1: {CLI}.no-cgroups is 'yes', but must be true or false",
        f"{PATH}, line 6, column 1: {RUNTIME}.runtimes is [runc, 1], but must be a list of strings",
    ]
    assert len(config.present({f"{CLI}.no-cgroups": False, "swarm-resource": None}).warnings) == 2


def test_warns_about_unsafe_settings() -> None:
    config = Config(written({"features.allow-ldconfig-from-container": True}))
    (warning,) = config.present(profile="rootless", settings={"features.allow-ldconfig-from-container": None}).warnings
    assert warning.startswith(f"{CLI}.no-cgroups is true")
    (warning,) = config.absent().warnings
    assert warning.startswith("features.allow-ldconfig-from-container is true")


def test_refuses_an_ldconfig_with_which_no_container_starts() -> None:
    ldconfig, feature = f"{CLI}.ldconfig", "features.allow-ldconfig-from-container"
    config = Config()
    for settings in ({ldconfig: "/sbin/ldconfig"}, {ldconfig: "/sbin/ldconfig", feature: False}):
        with pytest.raises(NvidiaError, match=f"settings: {ldconfig} is '/sbin/ldconfig', .* Put @ before the path"):
            config.present(settings)
    assert config.text == DEFAULT
    config.present({ldconfig: "/sbin/ldconfig", feature: True})
    config.present({ldconfig: "/sbin/ldconfig"})
    # Without the other setting, the value in the file would be refused.
    with pytest.raises(NvidiaError, match=ldconfig):
        config.present({feature: None})
    config.absent()
    assert config.text == DEFAULT
    # A task that does not name the value of another program only warns.
    config = Config(written({ldconfig: "/sbin/ldconfig"}))
    (warning,) = config.present({"disable-require": True}).warnings
    assert ldconfig in warning
    assert config.present({ldconfig: None}).warnings == ()


def test_writes_and_removes_unknown_settings() -> None:
    config = Config()
    requested = {"nvidia-container-runtime": {"new": {"key": [1, "x"], "empty": {}}}, "late": 1.5}
    plan = config.present(requested, allow_unknown=True)
    assert plan.settings["nvidia-container-runtime.new.key"] == [1, "x"]
    assert plan.settings["late"] == 1.5
    assert not config.present(requested, allow_unknown=True).file.changed
    config.present({"late": None}, allow_unknown=True, exclusive=True)
    assert config.text == DEFAULT


# -- Requested settings ----------------------------------------------------------------------------------------------

LEVEL = ("nvidia-container-runtime", "log-level")
DEBUG = ("nvidia-container-runtime", "debug")
CLI_DEBUG = ("nvidia-container-cli", "debug")
CGROUPS = ("nvidia-container-cli", "no-cgroups")


@pytest.mark.parametrize(
    "settings",
    [
        {"nvidia-container-runtime.log-level": "debug", "nvidia-container-runtime.modes.cdi.spec-dirs": ["/etc/cdi"]},
        {"nvidia-container-runtime": {"log-level": "debug", "modes": {"cdi": {"spec-dirs": ["/etc/cdi"]}}}},
        {"nvidia-container-runtime": {"log-level": "debug", "modes.cdi.spec-dirs": ["/etc/cdi"]}},
        {
            "nvidia-container-runtime.modes": {"cdi.spec-dirs": ["/etc/cdi"]},
            "nvidia-container-runtime.log-level": "debug",
        },
        {
            "nvidia-container-runtime": {"log-level": "debug", "modes": {}},
            "nvidia-container-runtime.log-level": "debug",
            "nvidia-container-runtime.modes.cdi": {"spec-dirs": ["/etc/cdi"]},
        },
    ],
    ids=["dotted", "nested", "mixed", "mixed the other way", "twice the same"],
)
def test_nested_and_dotted_settings_are_equal(settings: dict[str, t.Any]) -> None:
    requested = SettingsRequest(settings).values()
    assert requested == {LEVEL: "debug", ("nvidia-container-runtime", "modes", "cdi", "spec-dirs"): ["/etc/cdi"]}


_ALL_LOGS = {
    CLI_DEBUG: "/var/log/nvidia-container-toolkit.log", DEBUG: "/var/log/nvidia-container-runtime.log", LEVEL: "debug",
}  # fmt: skip
_HARDENED = {
    ("accept-nvidia-visible-devices-as-volume-mounts",): True,
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
}
_OWN_VALUES = {
    "nvidia-container-cli": {"no-cgroups": None, "debug": "/data/cli.log"}, "nvidia-container-runtime.debug": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (SettingsRequest({}), {}),
        (SettingsRequest({"features": {}}), {}),
        (SettingsRequest({}, profile="rootless"), {CGROUPS: True}),
        (SettingsRequest({}, profile="kubernetes_hardened"), _HARDENED),
        (SettingsRequest({}, debug=True), _ALL_LOGS),
        # Named settings have precedence.
        (
            SettingsRequest(_OWN_VALUES, profile="rootless", debug=True),
            {CGROUPS: None, CLI_DEBUG: "/data/cli.log", DEBUG: None, LEVEL: "debug"},
        ),
    ],
)
def test_requested_values(requested: SettingsRequest, expected: dict[tuple[str, ...], t.Any]) -> None:
    assert requested.values() == expected
    assert requested.debug_settings_to_reset() == {}


def test_debug_false_resets_debug_settings() -> None:
    request = SettingsRequest({"nvidia-container-runtime.debug": "/data/runtime.log"}, debug=False)
    assert request.values() == {DEBUG: "/data/runtime.log"}
    assert request.debug_settings_to_reset() == {
        CLI_DEBUG: ("/var/log/nvidia-container-toolkit.log",),
        LEVEL: ("debug", "trace"),
    }


# The settings and the error.
REFUSED: dict[str, tuple[dict[t.Any, t.Any], str]] = {
    "misspelled": (
        {"nvidia-container-runtime.log-levl": "debug"},
        "is not a known setting of the NVIDIA Container Toolkit. The most similar one is nvidia-container-runtime.log-",
    ),
    "underscores": ({"disable_require": True}, "The most similar one is disable-require."),
    "without its table": ({"log-level": "debug"}, "The most similar one is nvidia-container-runtime.log-level."),
    "in another table": ({"nvidia-ctk": {"no-cgroups": True}}, "most similar one is nvidia-container-cli.no-cgroups."),
    "several of that name": (
        {"nvidia-container-runtime-hook.debug": "/x"},
        "The most similar one is nvidia-container-runtime.debug.",
    ),
    "a feature": ({"features": {"disable-cuda-compat": True}}, "one is features.disable-cuda-compat-lib-hook."),
    "far from all": ({"zzz": {"yyy": 1}}, "zzz.yyy is not a known setting of the NVIDIA Container Toolkit. Correct it"),
    "null": ({"zzz": None}, "zzz is not a known setting"),
    "an empty table": ({"zzz": {}}, "zzz is not a known setting"),
    "twice": (
        {"nvidia-container-cli.no-cgroups": True, "nvidia-container-cli": {"no-cgroups": False}},
        "nvidia-container-cli.no-cgroups is set twice, with different values",
    ),
    "twice, once null": (
        {"nvidia-container-cli.no-cgroups": None, "nvidia-container-cli": {"no-cgroups": False}},
        "nvidia-container-cli.no-cgroups is set twice",
    ),
    "a table that is a value": ({"nvidia-container-runtime": "debug"}, "nvidia-container-runtime is a table"),
    "a table that is null": ({"features": None}, "features is a table, but its value is null."),
    "a value that is a table": ({"swarm-resource": {"x": 1}}, "swarm-resource is a dictionary, but must be a string"),
    "inside a value": (
        {"swarm-resource.x": 1},
        "swarm-resource.x is invalid, because a part of it is a setting and not a table",
    ),
    "no name": ({"": 1}, "settings: Invalid name ''"),
    "half a name": ({"nvidia-container-cli": {".debug": 1}}, "Invalid name 'nvidia-container-cli..debug'"),
    "no text": ({5: 1}, "settings: Invalid name '5'"),
    "a wrong value": ({"nvidia-container-runtime": {"mode": "x"}}, "nvidia-container-runtime.mode is 'x', but must"),
}


@pytest.mark.parametrize(("settings", "message"), list(REFUSED.values()), ids=list(REFUSED))
def test_rejects_invalid_settings(settings: dict[str, t.Any], message: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        SettingsRequest(settings).values()
    assert message in str(raised.value)
    assert str(raised.value).startswith("settings: ")


def test_unknown_features_are_booleans() -> None:
    settings = {"features": {"new": "yes", "old": "False", "other": None}}
    assert SettingsRequest(settings, allow_unknown=True).values() == {
        ("features", "new"): True,
        ("features", "old"): False,
        ("features", "other"): None,
    }
    with pytest.raises(NvidiaError, match=r"features\.new is not a known setting"):
        SettingsRequest(settings).values()


def test_allow_unknown() -> None:
    settings = {"zzz": {"yyy": [1], "x": {}, "n": None}, "nvidia-container-cli.new": 2}
    assert SettingsRequest(settings, allow_unknown=True).values() == {
        ("zzz", "yyy"): [1],
        ("zzz", "x"): {},
        ("zzz", "n"): None,
        ("nvidia-container-cli", "new"): 2,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"a": 1, "a.b": 2}, "a is both a value and a table that contains a.b"),
        ({"swarm-resource.x": 1}, "a part of it is a setting and not a table"),
        ({"nvidia-container-cli": 1}, "nvidia-container-cli is a table"),
        ({"nvidia-container-cli.debug": 1}, "nvidia-container-cli.debug is 1, but must be a string"),
        ({"a": [None]}, "TOML cannot store the value of a"),
        ({"features.new": 1}, "features.new is 1, but must be true or false"),
        ({"features": {"new": {"x": True}}}, "features.new is a dictionary, but must be true or false"),
        ({"features.new.x": True}, "a part of it is a setting and not a table"),
    ],
)
def test_allow_unknown_rejects_invalid_settings(settings: dict[str, t.Any], message: str) -> None:
    with pytest.raises(NvidiaError) as raised:
        SettingsRequest(settings, allow_unknown=True).values()
    assert message in str(raised.value)
