# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core.hostfs import DROP_INS, UNIT_BYTES, HostFS
from ansible_collections.gpufleet.nvidia.plugins.module_utils._systemd.units import UNIT_DIRS, Unit, load_unit
from ansible_collections.gpufleet.nvidia.tests.unit.helpers.guards import chrooted, within

if t.TYPE_CHECKING:
    from pathlib import Path

# As packaged by Debian and Ubuntu (docker.io).
DEBIAN = """\
[Unit]
Description=Docker Application Container Engine
Documentation=https://docs.docker.com
After=network-online.target docker.socket firewalld.service containerd.service time-set.target
Wants=network-online.target containerd.service
Requires=docker.socket

[Service]
Type=notify
# the default is not to use systemd for cgroups because the delegate issues still
# exists and systemd currently does not support the cgroup feature set required
# for containers run by docker
EnvironmentFile=-/etc/default/docker
ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS
ExecReload=/bin/kill -s HUP $MAINPID
LimitNOFILE=infinity
Delegate=yes
KillMode=process

[Install]
WantedBy=multi-user.target
"""

# As packaged by Docker (docker-ce).
UPSTREAM = """\
[Unit]
Description=Docker Application Container Engine
Requires=docker.socket

[Service]
Type=notify
# the default is not to use systemd for cgroups because the delegate issues still
ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock
ExecReload=/bin/kill -s HUP $MAINPID
TimeoutStartSec=0

[Install]
WantedBy=multi-user.target
"""

# As on an appliance that configures the runtimes by flags.
APPLIANCE = """\
[Service]
ExecStart=
ExecStart=/usr/bin/dockerd -H fd:// --shutdown-timeout 5 \\
    --add-runtime nvidia=/usr/bin/nvidia-container-runtime \\
    --default-runtime=nvidia
LimitMEMLOCK=infinity
LimitSTACK=67108864
"""

SOCKET = """\
[Socket]
ListenStream=/run/docker.sock
SocketMode=0660
SocketUser=root
SocketGroup=docker
"""

VENDOR = "/usr/lib/systemd/system"
LOCAL = "/etc/systemd/system"
NAME = "docker.service"
STEM = "docker"


def _host(root: Path, files: t.Mapping[str, str]) -> HostFS:
    """Return a host with ``files``. A text ``-> target`` creates a link."""
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            file.symlink_to(text[3:])
        else:
            file.write_text(text)
    return HostFS(str(root), live=False)


def _load(root: Path, files: t.Mapping[str, str], name: str = NAME) -> Unit:
    unit = load_unit(_host(root, files), name)
    assert unit is not None
    return unit


def _command(root: Path, service: str, files: t.Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the arguments of a unit whose section [Service] is ``service``."""
    return _load(root, {f"{VENDOR}/{NAME}": f"[Service]\n{service}\n", **(files or {})}).arguments


# -- real files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        (None, ()),
        ('# DOCKER_OPTS="--dns 8.8.8.8"\n', ()),
        ('DOCKER_OPTS="--dns 8.8.8.8 --default-runtime=nvidia"\n', ("--dns", "8.8.8.8", "--default-runtime=nvidia")),
        ("DOCKER_OPTS=-D\n", ("-D",)),
        ("DOCKER_OPTS=-D\nDOCKER_OPTS=''\n", ()),
        ("DOCKER_OPTS='--label \"a b\"'\n", ("--label", "a b")),
        ('DOCKER_OPTS="-D \\\n  --debug"\n', ("-D", "--debug")),
        ("DOCKER_OPTS='unclosed\n", ("unclosed",)),
    ],
)
def test_debian(tmp_path: Path, defaults: str | None, expected: tuple[str, ...]) -> None:
    files = {f"{VENDOR}/{NAME}": DEBIAN, **({} if defaults is None else {"/etc/default/docker": defaults})}
    unit = _load(tmp_path, files)
    assert unit.path == f"{VENDOR}/{NAME}"
    assert unit.arguments == (
        "/usr/sbin/dockerd", "-H", "fd://", "--containerd=/run/containerd/containerd.sock", *expected
    )  # fmt: skip


def test_upstream(tmp_path: Path) -> None:
    unit = _load(tmp_path, {f"{VENDOR}/{NAME}": UPSTREAM})
    assert unit.arguments == (
        "/usr/bin/dockerd", "-H", "fd://", "--containerd=/run/containerd/containerd.sock"
    )  # fmt: skip
    assert unit.flag_values("--host", "-H") == ["fd://"]
    assert unit.drop_ins == unit.listen == ()


def test_appliance_resets_the_command(tmp_path: Path) -> None:
    drop_in = f"{LOCAL}/{NAME}.d/docker-override.conf"
    unit = _load(tmp_path, {f"{VENDOR}/{NAME}": UPSTREAM, drop_in: APPLIANCE})
    assert unit.drop_ins == (drop_in,)
    assert unit.arguments[:4] == ("/usr/bin/dockerd", "-H", "fd://", "--shutdown-timeout")
    assert unit.flag_values("--containerd") == []
    assert unit.flag_values("--add-runtime") == ["nvidia=/usr/bin/nvidia-container-runtime"]
    assert unit.flag_values("--default-runtime") == ["nvidia"]


def test_drop_in_that_sets_a_proxy_leaves_the_command(tmp_path: Path) -> None:
    proxy = '[Service]\nEnvironment="HTTP_PROXY=http://proxy.example:3128" "NO_PROXY=localhost,127.0.0.1"\n'
    unit = _load(tmp_path, {f"{VENDOR}/{NAME}": UPSTREAM, f"{LOCAL}/{NAME}.d/http-proxy.conf": proxy})
    assert unit.arguments[0] == "/usr/bin/dockerd"


def test_socket(tmp_path: Path) -> None:
    files = {f"{VENDOR}/docker.socket": SOCKET}
    assert _load(tmp_path, files, "docker.socket").listen == ("/run/docker.sock",)
    files = {f"{LOCAL}/docker.socket.d/x.conf": "[Socket]\nListenStream=\nListenStream=/srv/d.sock\nListenStream=2375"}
    assert _load(tmp_path, files, "docker.socket").listen == ("/srv/d.sock", "2375")


# -- where the files are -------------------------------------------------------------------------------------------


def test_folders_in_order_of_precedence(tmp_path: Path) -> None:
    for folder in reversed(UNIT_DIRS):
        unit = _load(tmp_path, {f"{folder}/{NAME}": f"[Service]\nExecStart=/usr/bin/dockerd --label {folder}\n"})
        assert (unit.path, unit.arguments[-1]) == (f"{folder}/{NAME}", folder)


def test_no_unit(tmp_path: Path) -> None:
    drop_in = {f"{LOCAL}/{NAME}.d/x.conf": APPLIANCE}
    assert load_unit(_host(tmp_path, drop_in), NAME) is None


@pytest.mark.parametrize("folder", [LOCAL, "/run/systemd/system"])
@pytest.mark.parametrize("mask", ["-> /dev/null", "-> ../../../dev/null", ""], ids=["absolute", "relative", "empty"])
@pytest.mark.parametrize("devices", [{"/dev/null": ""}, {}], ids=["with /dev", "without /dev"])
def test_masked(tmp_path: Path, folder: str, mask: str, devices: dict[str, str]) -> None:
    """An empty file masks a unit like a link to /dev/null (systemd.unit(5)). Images have no files in /dev."""
    files = {f"{VENDOR}/{NAME}": UPSTREAM, f"{folder}/{NAME}": mask, **devices}
    assert load_unit(_host(tmp_path, files), NAME) is None


def test_linked_unit_inside_the_tree(tmp_path: Path) -> None:
    files = {"/opt/docker/docker.service": UPSTREAM, f"{LOCAL}/{NAME}": "-> /opt/docker/docker.service"}
    assert _load(tmp_path, files).arguments[0] == "/usr/bin/dockerd"


def test_merged_usr_counts_once(tmp_path: Path) -> None:
    files = {f"{VENDOR}/{NAME}": UPSTREAM, f"{VENDOR}/{NAME}.d/10-x.conf": APPLIANCE, "/lib": "-> usr/lib"}
    assert _load(tmp_path, files).drop_ins == (f"{VENDOR}/{NAME}.d/10-x.conf",)


def test_drop_ins_of_one_name_are_one_and_go_by_name(tmp_path: Path) -> None:
    def label(name: str) -> str:
        return f"[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --label {name}\n"

    files = {
        f"{VENDOR}/{NAME}": UPSTREAM,
        f"{VENDOR}/{NAME}.d/20-vendor.conf": label("vendor"),
        f"{VENDOR}/{NAME}.d/50-site.conf": label("vendor"),
        f"/run/systemd/system/{NAME}.d/50-site.conf": label("run"),
        f"{LOCAL}/{NAME}.d/50-site.conf": label("local"),
        f"{LOCAL}/{NAME}.d/10-early.conf": label("early"),
        f"{LOCAL}/{NAME}.d/99-readme.txt": label("no drop-in"),
    }
    unit = _load(tmp_path, files)
    assert unit.drop_ins == (
        f"{LOCAL}/{NAME}.d/10-early.conf", f"{VENDOR}/{NAME}.d/20-vendor.conf", f"{LOCAL}/{NAME}.d/50-site.conf"
    )  # fmt: skip
    assert unit.arguments == ("/usr/bin/dockerd", "--label", "local")
    # The directory has an effect only if two files have the same name.
    files = {f"{VENDOR}/{NAME}.d/60-late.conf": label("late")}
    assert _load(tmp_path, files).arguments[-1] == "late"


def test_drop_ins_for_all_services_give_way_to_the_units_own(tmp_path: Path) -> None:
    files = {
        f"{VENDOR}/{NAME}": "[Service]\nExecStart=/usr/bin/dockerd ${A} ${B}\n",
        f"{LOCAL}/service.d/10-all.conf": "[Service]\nEnvironment=A=all\n",
        f"{LOCAL}/service.d/20-both.conf": "[Service]\nEnvironment=B=all\n",
        f"{VENDOR}/{NAME}.d/20-both.conf": "[Service]\nEnvironment=B=own\n",
        f"{LOCAL}/socket.d/90.conf": "[Service]\nEnvironment=B=socket\n",
    }
    assert _load(tmp_path, files).arguments == ("/usr/bin/dockerd", "all", "own")


@pytest.mark.parametrize("mask", ["-> /dev/null", ""], ids=["link", "empty"])
def test_masked_drop_in_hides_the_vendors(tmp_path: Path, mask: str) -> None:
    files = {
        f"{VENDOR}/{NAME}": UPSTREAM,
        f"{VENDOR}/{NAME}.d/10-runtime.conf": APPLIANCE,
        f"{LOCAL}/{NAME}.d/10-runtime.conf": mask,
    }
    assert _load(tmp_path, files).flag_values("--default-runtime") == []


# -- syntax: systemd.syntax(7), systemd.service(5), "Command lines" ------------------------------------------------


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("ExecStart=/bin/d -a", "/bin/d|-a"),
        ("  ExecStart = /bin/d  -a\t-b  ", "/bin/d|-a|-b"),
        ("ExecStart=/bin/d \\\n  -a \\\n\t-b", "/bin/d|-a|-b"),
        ("ExecStart=/bin/d \\\n# what -a means\n; and this\n  -a", "/bin/d|-a"),
        ("ExecStart=/bin/d -a \\", "/bin/d|-a"),
        ("# a comment that ends so \\\nExecStart=/bin/d -a", "/bin/d|-a"),
        ("#ExecStart=/bin/d -a\n;ExecStart=/bin/d -b\nExecStart=/bin/d", "/bin/d"),
        ("ExecStart=/bin/d --label 'a b' \"--log-opt=c d\" ''", "/bin/d|--label|a b|--log-opt=c d|"),
        ('ExecStart=/bin/d --label "it\'s" \'say "x"\'', '/bin/d|--label|it\'s|say "x"'),
        ("ExecStart=/bin/d # -a", "/bin/d|#|-a"),
        ("ExecStart=/bin/d --label 100%%", "/bin/d|--label|100%"),
        ("ExecStart=/bin/d --label a$$HOME", "/bin/d|--label|a$HOME"),
        ("ExecStart=-/bin/d -a", "/bin/d|-a"),
        ("ExecStart=!!/bin/d -a", "/bin/d|-a"),
        ("ExecStart=+-/bin/d -a", "/bin/d|-a"),
        # With "@", the second word is the name of the process (argv[0]), and not an argument.
        ("ExecStart=@/bin/d docker-daemon -a", "/bin/d|-a"),
        ("ExecStart=:/bin/d $A ${A}", "/bin/d|$A|${A}"),
        ("ExecStart=/bin/old\nExecStart=\nExecStart=/bin/d", "/bin/d"),
        ("ExecStart=/bin/d\n[Unit]\nExecStart=/bin/none", "/bin/d"),
        ("ExecStart=/bin/d 'unclosed -a", "/bin/d|'unclosed|-a"),
    ],
)
def test_command_line(tmp_path: Path, service: str, expected: str) -> None:
    assert "|".join(_command(tmp_path, service)) == expected


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("ExecStart=/bin/d %n %N %p", f"/bin/d|{NAME}|{STEM}|{STEM}"),
        ("ExecStart=/bin/d %h/a %t/b %S %E", "/bin/d|/root/a|/run/b|/var/lib|/etc"),
        # %% is a percent sign, and the value of a specifier is not split at blanks.
        ("ExecStart=/bin/d %%h %%%h '%h b'", "/bin/d|%h|%/root|/root b"),
        # Specifiers that depend on the running machine, and invalid ones, are not replaced.
        ("ExecStart=/bin/d %H %!", "/bin/d|%H|%!"),
        ("Environment=A=%h/%%n\nExecStart=/bin/d $A", "/bin/d|/root/%n"),
        ("EnvironmentFile=-/etc/default/%N\nExecStart=/bin/d ${A}", "/bin/d|%h"),
        ("ExecStart=:/bin/d %N $A", f"/bin/d|{STEM}|$A"),
    ],
)
def test_specifiers(tmp_path: Path, service: str, expected: str) -> None:
    files = {f"/etc/default/{STEM}": "A=%h\n"}
    assert "|".join(_command(tmp_path, service, files)) == expected


def test_specifiers_of_an_instance_and_of_another_manager(tmp_path: Path) -> None:
    files = {f"{LOCAL}/d@x.service": "[Service]\nExecStart=/bin/d %p %i %h %S\n"}
    unit = load_unit(_host(tmp_path, files), "d@x.service", specifiers={"h": "/home/u"})
    assert unit is not None
    assert unit.arguments == ("/bin/d", "d", "x", "/home/u", "%S")


def test_command_that_was_reset_or_never_set(tmp_path: Path) -> None:
    assert _command(tmp_path, "Type=oneshot") == ()
    assert _command(tmp_path, "ExecStart=/bin/d", {f"{LOCAL}/{NAME}.d/x.conf": "[Service]\nExecStart=\n"}) == ()


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("Environment=A=1\nExecStart=/bin/d $A x${A}y ${A}", "/bin/d|1|x1y|1"),
        ('Environment="A=1 2" B=3\nExecStart=/bin/d $A ${A} $B', "/bin/d|1|2|1 2|3"),
        ("Environment=A='1 2'\nExecStart=/bin/d $A", "/bin/d|1|2"),
        ("Environment=A=x=y\nExecStart=/bin/d ${A}", "/bin/d|x=y"),
        ("Environment=A=1\nEnvironment=A=2\nExecStart=/bin/d $A", "/bin/d|2"),
        ("Environment=A=1\nEnvironment=\nExecStart=/bin/d $A -x${A}", "/bin/d|-x"),
        # $A is replaced only if it is a whole word, and values are not expanded again.
        ("Environment=A=$B B=1\nExecStart=/bin/d x$A $A", "/bin/d|x$A|$B"),
        ("ExecStart=/bin/d $UNSET ${UNSET}", "/bin/d|"),
        # Environment files override Environment= in any order, and a later file overrides an earlier one.
        ("EnvironmentFile=/etc/a\nEnvironment=A=unit\nExecStart=/bin/d $A", "/bin/d|a"),
        ("EnvironmentFile=/etc/a\nEnvironmentFile=-/etc/b\nExecStart=/bin/d $A $B", "/bin/d|b|b"),
        ("EnvironmentFile=/etc/b\nEnvironmentFile=/etc/a\nExecStart=/bin/d $A $B", "/bin/d|a|b"),
        ("EnvironmentFile=/etc/a\nEnvironmentFile=\nEnvironmentFile=-/etc/none\nExecStart=/bin/d x${A}", "/bin/d|x"),
    ],
)
def test_environment(tmp_path: Path, service: str, expected: str) -> None:
    files = {"/etc/a": "# A=none\n;A=none\n\nA=a\n", "/etc/b": 'A = b\nB="b"\n'}
    assert "|".join(_command(tmp_path, service, files)) == expected


# -- flag_values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "names", "values"),
    [
        ("--host=a --host b -H c -Hd -H=e", ("--host", "-H"), ["a", "b", "c", "d", "e"]),
        ("--host= -H", ("--host", "-H"), ["", ""]),
        ("--hosts=a --host-x b", ("--host", "-H"), []),
        ("--pidfile=/run/x.pid --p=y", ("--pidfile", "-p"), ["/run/x.pid"]),
        ("-D -p /run/x.pid", ("--pidfile", "-p"), ["/run/x.pid"]),
        ("--config-file --host", ("--config-file",), ["--host"]),
        ("--add-runtime a=/x=y", ("--add-runtime",), ["a=/x=y"]),
        # The flag package of Go, which containerd uses, takes one dash for two.
        ("-config /a -config=/b -c /c -c=/d --c /e", ("--config", "-c"), ["/a", "/b", "/c", "/d"]),
        ("H x c=y -config", ("--config", "-c", "-H"), [""]),
        ("-configs /a -Hfd://", ("--config", "-c", "-H"), ["onfigs", "fd://"]),
    ],
)
def test_flag_values(arguments: str, names: tuple[str, ...], values: list[str]) -> None:
    # The program itself is never a flag.
    assert Unit(NAME, "", arguments=("--host=program", *arguments.split())).flag_values(*names) == values


@pytest.mark.parametrize(
    ("command", "arguments", "wrapper"),
    [
        ("/usr/bin/dockerd --debug", ("/usr/bin/dockerd", "--debug"), ""),
        ("@/opt/bin/dockerd name --debug", ("/opt/bin/dockerd", "--debug"), ""),
        ('/bin/sh -c "exec /usr/bin/dockerd $OPTS" --config-file=/x', (), "/bin/sh"),
        ("/usr/bin/env dockerd --config-file=/x", (), "/usr/bin/env"),
        ("/usr/bin/dockerd-rootless.sh --debug", (), "/usr/bin/dockerd-rootless.sh"),
        ("", (), ""),
    ],
)
def test_flags_are_only_those_of_the_program(
    tmp_path: Path, command: str, arguments: tuple[str, ...], wrapper: str
) -> None:
    host = _host(tmp_path, {f"{VENDOR}/{NAME}": f"[Service]\nExecStart={command}\n"})
    unit = load_unit(host, NAME, "dockerd")
    assert unit is not None
    assert (unit.arguments, unit.wrapper) == (arguments, wrapper)
    whole = load_unit(host, NAME)
    assert whole is not None
    assert whole.wrapper == ""
    assert bool(whole.arguments) is bool(command)


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_in", [False, True])
def test_a_file_of_a_unit_that_is_too_large(tmp_path: Path, drop_in: bool) -> None:
    path = f"/etc/systemd/system/{NAME}.d/a.conf" if drop_in else f"{VENDOR}/{NAME}"
    host = _host(tmp_path, {f"{VENDOR}/{NAME}": "[Service]\nExecStart=/bin/d\n"})
    (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    with (tmp_path / path[1:]).open("wb") as stream:
        stream.truncate(UNIT_BYTES + 1)
    with pytest.raises(HostError, match=rf"^{path} is larger than 256 KiB"):
        load_unit(host, NAME)


def test_a_unit_with_too_many_drop_ins(tmp_path: Path) -> None:
    drop_ins = {f"/etc/systemd/system/{NAME}.d/{number}.conf": "" for number in range(DROP_INS)}
    host = _host(tmp_path, {f"{VENDOR}/{NAME}": "[Service]\nExecStart=/bin/d\n", **drop_ins})
    unit = load_unit(host, NAME)
    assert unit is not None
    assert len(unit.drop_ins) == DROP_INS
    (tmp_path / f"etc/systemd/system/{NAME}.d/z.conf").write_text("")
    with pytest.raises(HostError, match=rf"^The unit {NAME} has more than 100 drop-ins"):
        load_unit(host, NAME)


def test_a_drop_in_and_an_environment_file_that_are_switched_off(tmp_path: Path) -> None:
    drop_in = f"/etc/systemd/system/{NAME}.d/a.conf"
    service = "[Service]\nEnvironmentFile=/etc/off\nExecStart=/bin/d x$A ${A}\n"
    host = _host(tmp_path, {f"{VENDOR}/{NAME}": service, drop_in: "-> /dev/null", "/etc/off": "-> /dev/null"})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dev").mkdir()
    (tmp_path / "pipe").rename(tmp_path / "dev/null")
    with within(5):
        unit = load_unit(host, NAME)
    assert unit is not None
    assert (unit.drop_ins, unit.arguments) == ((drop_in,), ("/bin/d", "x$A", ""))


@pytest.mark.parametrize("target", ["/proc/kmsg", "/etc/pipe", "/etc"])
def test_an_environment_file_that_is_no_file_of_settings(tmp_path: Path, target: str) -> None:
    files = {f"{VENDOR}/{NAME}": f"[Service]\nEnvironmentFile=-{target}\nExecStart=/bin/d\n", "/proc/kmsg": "A=1"}
    host = _host(tmp_path, files)
    (tmp_path / "etc").mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "etc/pipe")
    with within(5), pytest.raises(HostError, match=rf"^{target} (is not a regular file|leads to)"):
        load_unit(host, NAME)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_unit_that_this_user_may_not_read_is_empty(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    host = _host(tmp_path, {f"{VENDOR}/{NAME}": "[Service]\nExecStart=/bin/d\n"})
    (tmp_path / VENDOR[1:] / NAME).chmod(0)

    def work() -> str:
        return str(load_unit(HostFS(), NAME))

    assert chrooted(tmp_path, work, uid=65534) == "None"
    assert host.read(f"{VENDOR}/{NAME}")


@pytest.mark.parametrize(
    "line",
    [
        "ExecStart=a\n",
        "WantedBy=a\n[Service]\n",
        "Environment=A=b\n",
        "a\\\n",
        "ExecStart=" + "a" * 200_000 + "\n",
        "Environment=" + "\\a" * 100_000 + "\n",
        'ExecStart="' + '\\"' * 100_000 + '"\n',
    ],
    ids=["commands", "names", "variables", "continued", "a long word", "backslashes", "quoted"],
)
def test_the_largest_unit_is_read_in_linear_time(tmp_path: Path, line: str) -> None:
    """The drop-ins have 5 MiB in total. A reader with quadratic time would need minutes for them."""
    text = "[Service]\n" + line * ((UNIT_BYTES - 10) // len(line))
    files = {f"/etc/systemd/system/{NAME}.d/{number}.conf": text for number in range(20)}
    host = _host(tmp_path, {f"{VENDOR}/{NAME}": "[Service]\n", **files})
    with within(60):
        assert load_unit(host, NAME) is not None


@pytest.mark.parametrize("reference", ["$A ", "${A}"])
def test_variables_that_multiply(tmp_path: Path, reference: str) -> None:
    service = f"Environment='A={'a ' * 50_000}'\nExecStart=/bin/d " + reference * 40_000
    with within(30), pytest.raises(HostError, match=r"the values of the variables in ExecStart are longer"):
        _command(tmp_path, service, {})
