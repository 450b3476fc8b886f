# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import NvidiaError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents.toml_document import TomlDocument
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.constants import RUNTIMES
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.layout import (
    CLI,
    CTK,
    HOOK,
    ConfigInputs,
    DirectoryLayout,
    DirectorySpec,
    WrapperContext,
    build_layout,
    check_dest,
    check_runtime,
    content_digest,
    wrapper,
)
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.directory.manifest import PartDigest
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.toolkit_directories import CONFIG, DEST

if t.TYPE_CHECKING:
    from pathlib import Path


FOLDER = f"{DEST}.versions/1.20.0-0123456789ab"
PROGRAMS = {
    "runtime": ["nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"],
    "hook": ["nvidia-container-runtime-hook"],
    "cli": ["nvidia-container-cli"],
    "ctk": ["nvidia-ctk"],
}


def part(name: str, mode: int = 0o755, soname: str = "") -> PartDigest:
    return PartDigest(name, "ab" * 32, mode, 7, 62, soname)


ALL = [
    *(part(name) for names in PROGRAMS.values() for name in names),
    part("nvidia-cdi-hook"),
    part("libnvidia-container.so.1.20.0", 0o644, "libnvidia-container.so.1"),
    part("libnvidia-container-go.so.1", 0o644),
]


def plan(parts: t.Sequence[PartDigest] = ALL, default: str | None = None, **wanted: t.Any) -> DirectoryLayout:
    requested = {"driver_root": "/", "runtimes": ("runc", "crun"), "settings": {}, **wanted}
    return build_layout(parts, DirectorySpec(DEST, ConfigInputs(**requested), default), FOLDER)


def config(**wanted: t.Any) -> dict[str, t.Any]:
    entry = plan(**wanted).entries[CONFIG]
    return TomlDocument.from_bytes("config.toml", entry.text).data


@pytest.mark.parametrize("component", PROGRAMS)
def test_single_component(component: str) -> None:
    names = PROGRAMS[component]
    found = plan([part(name) for name in names]).entries
    link = {"nvidia-container-toolkit"} if component == "hook" else set()
    assert set(found) == {*names, *(f"{name}.real" for name in names), *link, CONFIG}
    for name in names:
        assert (found[f"{name}.real"].part, found[f"{name}.real"].sha256) == (name, "ab" * 32)
        assert found[name].text.startswith(b"#!/bin/sh\n")
        assert not found[name].part


def test_links_and_unwrapped_programs() -> None:
    found = plan().entries
    assert found["nvidia-container-toolkit"].target == "nvidia-container-runtime-hook"
    assert found["libnvidia-container.so.1"].target == "libnvidia-container.so.1.20.0"
    assert found["libnvidia-container-go.so.1"].part == "libnvidia-container-go.so.1"
    assert found["nvidia-cdi-hook"].part == "nvidia-cdi-hook"
    assert "nvidia-cdi-hook.real" not in found


@pytest.mark.parametrize(
    ("mode", "program", "script", "library"),
    [
        (0o755, 0o755, 0o755, 0o755),
        (0o644, 0o755, 0o755, 0o644),
        (0o4755, 0o755, 0o755, 0o755),
        (0o777, 0o755, 0o755, 0o755),
        (0o600, 0o711, 0o755, 0o644),
        (0o000, 0o111, 0o555, 0o444),
    ],
)
def test_modes(mode: int, program: int, script: int, library: int) -> None:
    """All users may run and load the files. Only the owner may write, and no file has set-user-ID."""
    found = plan([part("nvidia-ctk", mode), part("nvidia-cdi-hook", mode), part("libx.so.1", mode)]).entries
    assert found["nvidia-ctk.real"].mode == found["nvidia-cdi-hook"].mode == program
    assert found["nvidia-ctk"].mode == script
    assert found["libx.so.1"].mode == library
    assert found[CONFIG].mode == 0o644


def test_config() -> None:
    assert config() == {
        "accept-nvidia-visible-devices-as-volume-mounts": False,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": True,
        "nvidia-container-cli": {
            "root": "/",
            "path": f"{FOLDER}/nvidia-container-cli",
            "ldconfig": "@/sbin/ldconfig",
        },
        "nvidia-container-runtime": {"runtimes": ["runc", "crun"]},
        "nvidia-container-runtime-hook": {
            "path": f"{FOLDER}/nvidia-container-runtime-hook",
            "skip-mode-detection": True,
        },
        "nvidia-ctk": {"path": f"{FOLDER}/nvidia-ctk"},
    }


@pytest.mark.parametrize(
    ("root", "real", "ldconfig"),
    [
        ("/", True, "@/sbin/ldconfig.real"),
        ("/run/nvidia/driver", False, "@/run/nvidia/driver/sbin/ldconfig"),
        ("/run/nvidia/driver", True, "@/run/nvidia/driver/sbin/ldconfig.real"),
    ],
)
def test_driver_root(root: str, real: bool, ldconfig: str) -> None:
    found = config(driver_root=root, real_ldconfig=real)["nvidia-container-cli"]
    assert (found["root"], found["ldconfig"]) == (root, ldconfig)


def test_refuses_an_ldconfig_with_which_no_container_starts() -> None:
    settings = {"nvidia-container-cli.ldconfig": "/sbin/ldconfig"}
    with pytest.raises(NvidiaError, match="Put @ before the path"):
        plan(settings=settings)
    found = config(settings={**settings, "features.allow-ldconfig-from-container": True})
    assert found["nvidia-container-cli"]["ldconfig"] == "/sbin/ldconfig"


def test_settings_have_precedence() -> None:
    mode = "accept-nvidia-visible-devices-as-volume-mounts"
    variable = "accept-nvidia-visible-devices-envvar-when-unprivileged"
    found = config(
        settings={
            variable: True,
            "nvidia-container-cli": {"path": "/x"},
            "nvidia-container-runtime.runtimes": ["youki"],
        },
        profile="kubernetes_hardened",
        debug=True,
    )
    assert (found[mode], found[variable]) == (True, True)
    assert found["nvidia-container-cli"]["path"] == "/x"
    assert found["nvidia-container-runtime"]["runtimes"] == ["youki"]
    assert found["nvidia-container-runtime"]["log-level"] == "debug"
    assert found["nvidia-container-cli"]["debug"]
    assert config(profile="kubernetes_hardened")[variable] is False
    assert config(debug=False) == config()


def test_null_removes_a_setting() -> None:
    found = config(settings={"nvidia-container-cli": {"root": None}, "nvidia-ctk.path": None})
    assert "root" not in found["nvidia-container-cli"]
    assert "nvidia-ctk" not in found


def test_reported_settings_equal_the_file() -> None:
    found = plan(settings={"nvidia-container-cli.environment": ["TOKEN=abc", "A=b"]})
    assert found.settings["nvidia-container-runtime.mode"] == "auto"
    assert found.settings["nvidia-container-cli.root"] == "/"
    assert b"TOKEN=abc" in found.entries[CONFIG].text
    assert "abc" not in str(found.settings)


def test_quotes_special_characters() -> None:
    odd = "/a\"b\\c'd ü #"
    assert config(settings={"nvidia-ctk.path": odd})["nvidia-ctk"]["path"] == odd


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no-such": 1}, "no-such is not a known setting"),
        ({"nvidia-container-cli": {"load-kmods": "maybe"}}, "nvidia-container-cli.load-kmods"),
        ({"nvidia-container-runtime.runtimes": ["/opt/nvidia/toolkit/runc"]}, "would start itself in an endless loop"),
        (
            {"nvidia-container-runtime.runtimes": ["nvidia-container-runtime.cdi"]},
            "would start itself in an endless loop",
        ),
        ({"nvidia-ctk.path": "/x", "nvidia-ctk": {"path": "/y"}}, "set twice"),
    ],
)
def test_rejects_invalid_settings(settings: dict[str, t.Any], message: str) -> None:
    with pytest.raises(NvidiaError, match=message):
        plan(settings=settings)


def test_runtimes_without_a_driver() -> None:
    text = plan(default="/usr/bin/crun").entries["nvidia-container-runtime"].text
    assert b"for runtime in /usr/bin/crun runc crun;" in text
    assert b"for runtime in runc crun;" in plan(default="runc").entries["nvidia-container-runtime"].text


@pytest.mark.parametrize("dest", ["/opt/a:b", "/opt/a;b", "/opt/$ORIGIN", "/opt/a\nb", "/opt/a\tb", "/", "/opt/\udcff"])
def test_rejects_invalid_dest(dest: str) -> None:
    with pytest.raises(NvidiaError, match="dest"):
        check_dest(dest)


@pytest.mark.parametrize(
    "dest", ["/opt/nvidia", "/opt/a b", "/opt/it's", '/o/"x"', "/opt/größe", "/opt/a\\b", "/opt/*"]
)
def test_accepts_valid_dest(dest: str) -> None:
    check_dest(dest)


@pytest.mark.parametrize(
    "runtime",
    [
        "",
        "-runc",
        "bin/runc",
        "./runc",
        "a\nb",
        "nvidia-container-runtime",
        f"/x/{PROGRAMS['runtime'][2]}",
        f"{DEST}/x",
    ],
)
def test_rejects_invalid_runtimes(runtime: str) -> None:
    with pytest.raises(NvidiaError, match="low_level_runtimes has"):
        check_runtime("low_level_runtimes has", runtime, DEST)


@pytest.mark.parametrize("runtime", ["runc", "/usr/bin/crun", "/opt/a b/youki", f"{DEST}2/runc"])
def test_accepts_valid_runtimes(runtime: str) -> None:
    check_runtime("low_level_runtimes has", runtime, DEST)


def test_digest_includes_all_inputs() -> None:
    wanted = ConfigInputs("/", ("runc",), {})
    designs = [
        DirectorySpec(DEST, wanted),
        DirectorySpec(DEST + "2", wanted),
        DirectorySpec(DEST, wanted, "crun"),
        DirectorySpec(DEST, wanted._replace(driver_root="/x")),
        DirectorySpec(DEST, wanted._replace(runtimes=("crun",))),
        DirectorySpec(DEST, wanted._replace(settings={"disable-require": True})),
        DirectorySpec(DEST, wanted._replace(profile="rootless")),
        DirectorySpec(DEST, wanted._replace(debug=True)),
        DirectorySpec(DEST, wanted._replace(real_ldconfig=True)),
    ]
    found = {content_digest(ALL, spec) for spec in designs}
    found |= {content_digest(ALL[1:], designs[0]), content_digest([ALL[0]._replace(sha256="x"), *ALL[1:]], designs[0])}
    assert len(found) == len(designs) + 2
    assert content_digest(list(ALL), DirectorySpec(DEST, ConfigInputs("/", ("runc",), {}))) in found
    assert content_digest(ALL, DirectorySpec(DEST, ConfigInputs("/", ("runc",), {}, allow_unknown=True))) in found


# -- Wrappers --------------------------------------------------------------------------------------------------------

SHELLS = [
    words for words in ("/bin/dash", "/bin/bash", "/bin/busybox sh", "/bin/sh") if os.path.exists(words.split()[0])
]
ODD = [
    "plain",
    "a b",
    "it's",
    'say "x"',
    "back\\slash",
    "a*?[b]",
    "wow!!",
    "größe",
    "-n -x",
    "100%s",
    "a&b|(c)`d`",
    "~",
    "#",
]
ARGUMENTS = ["run", "", " two  words ", "line\nbreak", "$HOME `x` \\", "*", "-n", "ü'\""]
LOADED = "nvidia_uvm 4096 0 - Live 0x0\nnvidia 8192 1 nvidia_uvm, Live 0x0\n"
NOT_LOADED = "xnvidia 1 0 - Live 0x0\nnvidia_uvm 4096 0 - Live 0x0\nnvidia-x 1 0 - Live 0x0\next4 1 nvidia, Live 0x0\n"
STATUS = 7
REAL = f"""\
#!/bin/sh
printf '%s\\0' "$0" "${{PATH-unset}}" "${{LD_LIBRARY_PATH-unset}}" "${{NVIDIA_CTK_CONFIG_FILE_PATH-unset}}" "$@"
exit {STATUS}
"""


def script(path: Path, text: str = REAL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Wrapped:
    """A program and its wrapper in a directory. ``modules`` are the loaded kernel modules."""

    def __init__(
        self, tmp_path: Path, program: str, name: str = "version", runtimes: t.Sequence[str] = ("runc",)
    ) -> None:
        self.folder = tmp_path / name
        self.dest = tmp_path / "dest"
        self.modules = tmp_path / "modules"
        self.sysfs = tmp_path / "sysfs"
        self.modules.write_text(NOT_LOADED)
        self.real = script(self.folder / f"{program}.real")
        text = wrapper(program, WrapperContext(str(self.folder), str(self.dest), runtimes))
        for real, fake in (("/sys/module/nvidia", self.sysfs), ("/proc/modules", self.modules)):
            assert (real in text) == (program in RUNTIMES)
            text = text.replace(real, str(fake))
        self.script = script(self.folder / program, text)

    def run(self, *arguments: str, shell: str = "/bin/sh", **environment: str) -> tuple[int, list[str], str]:
        """Return the status, the arguments of the last program, and the output."""
        done = subprocess.run(
            [*shell.split(), str(self.script), *arguments], capture_output=True, text=True, check=False, env=environment
        )
        return done.returncode, done.stdout.split("\0")[:-1], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("program", [RUNTIMES[0], CLI])
def test_wrapper_runs_its_own_version(program: str, name: str, shell: str, tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, program, name)
    wrapped.sysfs.mkdir()
    status, printed, error = wrapped.run(*ARGUMENTS, shell=shell, PATH="/usr/bin:/bin", LD_LIBRARY_PATH="/lib/x")
    folder = str(wrapped.folder)
    config = f"{folder}/.config/nvidia-container-runtime/config.toml" if program in RUNTIMES else "unset"
    libraries = f"{folder}:/lib/x" if program == CLI else "/lib/x"
    assert printed == [str(wrapped.real), f"{folder}:/usr/bin:/bin", libraries, config, *ARGUMENTS]
    assert (status, error) == (STATUS, "")


@pytest.mark.parametrize(
    ("program", "path", "libraries", "config"),
    [
        *((name, "folder", False, True) for name in (*RUNTIMES, HOOK)),
        (CLI, "folder", True, False),
        # nvidia-ctk writes the programs in its PATH into CDI specifications.
        (CTK, "dest", False, False),
    ],
)
def test_variables(program: str, path: str, libraries: bool, config: bool, tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, program)
    wrapped.modules.write_text(LOADED)
    printed = wrapped.run(PATH="/usr/bin:/bin")[1]
    assert printed == [
        str(wrapped.real),
        f"{wrapped.dest if path == 'dest' else wrapped.folder}:/usr/bin:/bin",
        str(wrapped.folder) if libraries else "unset",
        f"{wrapped.folder}/.config/nvidia-container-runtime/config.toml" if config else "unset",
    ]


@pytest.mark.parametrize("empty", [{}, {"PATH": "", "LD_LIBRARY_PATH": ""}])
def test_variables_have_no_empty_entry(empty: dict[str, str], tmp_path: Path) -> None:
    """An empty entry would be the working directory."""
    printed = Wrapped(tmp_path, CLI).run(**empty)[1]
    assert printed[2] == str(tmp_path / "version")
    # Without PATH, shells use a default.
    assert not any(not entry for entry in printed[1].split(":"))
    assert printed[1].split(":")[0] == str(tmp_path / "version")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        (LOADED, True),
        ("nvidia 1 0 - Live 0x0", False),
        ("nvidia 1 0 - Live 0x0\n", True),
        (NOT_LOADED, False),
        ("", False),
        (None, False),
    ],
)
def test_wrapper_checks_the_driver(modules: str | None, loaded: bool, shell: str, tmp_path: Path) -> None:
    """Ignore an incomplete last line."""
    runc = script(tmp_path / "runc")
    wrapped = Wrapped(tmp_path, RUNTIMES[1], runtimes=[str(runc)])
    if modules is None:
        wrapped.modules.unlink()
    else:
        wrapped.modules.write_text(modules)
    status, printed, error = wrapped.run("create", "x y", shell=shell, PATH="/usr/bin:/bin")
    assert status == STATUS
    assert (printed[0] == str(wrapped.real)) is loaded
    assert printed[-2:] == ["create", "x y"]
    assert ("a low-level runtime takes over" in error) is not loaded
    assert error.count("\n") == (0 if loaded else 1)
    if not loaded:
        # The other runtime gets the unchanged environment.
        assert printed[:4] == [str(runc), "/usr/bin:/bin", "unset", "unset"]


@pytest.mark.parametrize("name", ODD)
def test_wrapper_runs_the_first_existing_runtime(name: str, tmp_path: Path) -> None:
    runtime = script(tmp_path / "programs" / f"{name} runc")
    second = script(tmp_path / "second/crun")
    wrapped = Wrapped(tmp_path, RUNTIMES[0], runtimes=["/nowhere/runc", "not-there", str(runtime), str(second)])
    assert wrapped.run(*ARGUMENTS, PATH="/usr/bin:/bin")[1] == [
        str(runtime),
        "/usr/bin:/bin",
        "unset",
        "unset",
        *ARGUMENTS,
    ]


def test_wrapper_searches_names_in_path(tmp_path: Path) -> None:
    crun = script(tmp_path / "programs/crun")
    wrapped = Wrapped(tmp_path, RUNTIMES[2], runtimes=["gpufleet-runc", "crun"])
    assert wrapped.run("list", PATH=f"{crun.parent}:/usr/bin:/bin")[1][0] == str(crun)


@pytest.mark.parametrize("shell", SHELLS)
def test_wrapper_skips_files_that_are_not_executable(shell: str, tmp_path: Path) -> None:
    folder, text, crun = tmp_path / "folder", tmp_path / "text", script(tmp_path / "crun")
    folder.mkdir()
    text.write_text("no program")
    wrapped = Wrapped(tmp_path, RUNTIMES[0], runtimes=[str(folder), str(text), str(crun)])
    assert wrapped.run(shell=shell, PATH="/usr/bin:/bin")[1][:1] == [str(crun)]


@pytest.mark.parametrize("runtimes", [["/nowhere/runc", "gpufleet-runc"], []])
def test_wrapper_fails_without_runtime(runtimes: list[str], tmp_path: Path) -> None:
    status, printed, error = Wrapped(tmp_path, RUNTIMES[0], runtimes=runtimes).run("x", PATH="/usr/bin:/bin")
    assert (status, printed) == (127, [])
    assert f"no low-level runtime was found, looked for {', '.join(runtimes)}" in error


def test_wrapper_is_valid_shell_code(tmp_path: Path) -> None:
    """Check the syntax without running the script."""
    for program in (*RUNTIMES, HOOK, CLI, CTK):
        wrapped = Wrapped(tmp_path, program, "it's")
        for shell in SHELLS:
            subprocess.run([*shell.split(), "-n", str(wrapped.script)], check=True)
        shutil.rmtree(str(wrapped.folder))


@pytest.mark.parametrize(
    ("version", "older"), [(None, False), ("1.20.0", False), ("1.18.0", False), ("1.17.8", True), ("1.9.0", True)]
)
def test_wrapper_passes_config_to_older_toolkits(version: str | None, older: bool) -> None:
    around = WrapperContext("/opt/v", "/opt/d", ["runc"], version)
    for program in (*RUNTIMES, HOOK):
        assert ("XDG_CONFIG_HOME=/opt/v/.config\n" in wrapper(program, around)) is older
    option = (
        "exec /opt/v/nvidia-container-runtime-hook.real -config /opt/v/.config/nvidia-container-runtime/config.toml"
    )
    assert (option in wrapper(HOOK, around)) is older
    assert "-config" not in wrapper(RUNTIMES[0], around).replace("/.config", "")
    assert "XDG_CONFIG_HOME" not in wrapper(CTK, around) + wrapper(CLI, around)


@pytest.mark.parametrize(
    "value",
    [True, 5, 0.5, float("inf"), 'a\x7f"b', ["a", "b"], [{"a": 1, "b c": [True]}], {"b c": "d", "é": {"f": [1.5]}}],
)
def test_unknown_settings_are_valid_toml(value: t.Any) -> None:
    settings = {"my key": value, "new": {"other key": value}}
    data = config(settings=settings, allow_unknown=True)
    assert (data["my key"], data["new"]["other key"]) == (value, value)


@pytest.mark.parametrize("value", ["\udc80", ["\udc80"], {"a": "\udc80"}, [None], [{1: "a"}]])
def test_refuses_values_that_toml_cannot_contain(value: t.Any) -> None:
    with pytest.raises(NvidiaError, match="TOML cannot store the value of new"):
        plan(settings={"new": {"a": value}}, allow_unknown=True)
