# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands, transactions, versions and locks that all package managers share."""

from __future__ import annotations

import time
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors

if t.TYPE_CHECKING:
    import re

    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The packages of the toolkit. Those that are installed have the same version, and change in one transaction.
PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# The values of the option ``packages``, and the packages that each of them installs. NVIDIA documents the base package
# for hosts that use CDI alone. The others contain the hook of mode legacy and what it runs (packaging/debian and
# packaging/rpm of nvidia-container-toolkit 1.18 to 1.20).
FULL, BASE = "full", "base"
PACKAGE_SETS = {FULL: PACKAGES, BASE: PACKAGES[1:2]}
# Older packages that they replace. 1.14 was the last release of the toolkit that had such packages.
REPLACED_PACKAGES = (
    "nvidia-docker2",
    "nvidia-docker",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
)

# The name of this collection's repository. No other instructions use it.
REPOSITORY_NAME = "gpufleet-nvidia-container-toolkit"
# The names of key files contain sixteen hexadecimal digits of the key's fingerprint.
SHORT_FINGERPRINT = "[0-9A-Fa-f]" * 16
# The values that mean false for apt (sources.list(5), apt.conf(5)), dnf (dnf.conf(5)) or zypper.
FALSE = ("no", "false", "without", "off", "disable", "0")

# Seconds between two attempts to get a lock.
_PAUSE = 2.0
# The number of a program's last lines in an error.
_MAX_LINES = 10


class Package(t.NamedTuple):
    """An installed package. ``complete`` is false if an interrupted transaction left it unconfigured."""

    version: str
    held: bool = False
    complete: bool = True


class Candidate(t.NamedTuple):
    """An available version.

    ``origin`` is the source, as the package manager names it. ``preferred`` is true if the package manager chooses this
    version by default.
    """

    version: str
    origin: str
    preferred: bool = False


Offers = t.Dict[str, t.List[Candidate]]  # by the names of packages


class PackageFile(t.NamedTuple):
    """The path of a package file, and the name, version and architecture that the file contains."""

    path: str
    name: str
    version: str
    architecture: str


class Change(t.NamedTuple):
    """The changes of one transaction.

    ``install`` maps names to full versions. ``files`` are package files to install instead. A package that is removed
    together with an installation keeps its configuration files. A package that is removed alone loses them.
    ``change_held`` allows a held package to change. With ``own``, the packages in ``install`` come from this
    collection's repository only. What they depend on may come from any source.
    """

    install: t.Mapping[str, str] = types.MappingProxyType({})
    files: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    change_held: bool = False
    own: bool = False


class Preview(t.NamedTuple):
    """The changes that the package manager would make.

    ``install`` maps names to new versions. ``remove`` and ``downgrade`` are names of packages. ``held`` are those of
    all these packages whose version is held, if the transaction would change them nevertheless.
    """

    install: t.Mapping[str, str] = types.MappingProxyType({})
    remove: tuple[str, ...] = ()
    downgrade: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


class Entry(t.NamedTuple):
    """One address of a source. ``line`` counts from 1.

    ``flat`` is true for a repository without suites, such as NVIDIA's. apt treats two suites of one address as two
    sources.
    """

    line: int
    address: str
    flat: bool = True


class Repository(t.NamedTuple):
    """The sources of a package manager, and the files of this collection's repository.

    ``files`` are those of this collection, without the key. The first one has the address of the repository.
    ``key_pattern`` is the path of the key. ``source_files`` returns the files on a host that name repositories, and
    ``entries`` the active entries of such a file, from its path and its text.
    """

    files: tuple[str, ...]
    key_pattern: str
    source_files: t.Callable[[hostfs.HostFS], list[str]]
    entries: t.Callable[[str, str], t.Iterator[Entry]]

    @property
    def source(self) -> str:
        """The file with the address of the repository."""
        return self.files[0]


def with_digits(pattern: str, fingerprint: str) -> str:
    """Return the path of a key whose ``pattern`` contains SHORT_FINGERPRINT."""
    return pattern.replace(SHORT_FINGERPRINT, fingerprint[-16:].lower())


class Commands(t.NamedTuple):
    """Runners for queries, for commands that fetch lists, and for transactions, which must not be interrupted."""

    read: core_plan.Runner
    fetch: core_plan.Runner
    change: core_plan.Runner

    @classmethod
    def of(cls, run: core_plan.Runner) -> Commands:
        return cls(run, run, run)


class PackageManager(t.Protocol):
    """The packages of one host. Every method that runs a program raises CommandError if the program fails."""

    @property
    def name(self) -> str: ...

    @property
    def repository(self) -> Repository: ...

    @property
    def warnings(self) -> t.Sequence[str]:
        """Side effects of the transactions so far."""

    @property
    def records_reboot(self) -> bool:
        """Whether a required reboot is recorded in one of REBOOT_FILES."""

    @property
    def imports_keys(self) -> bool:
        """Whether the key of a repository must be imported into the database of rpm."""

    @property
    def readable(self) -> bool:
        """Whether installed() works. A database that only its own program reads is not readable in an offline tree."""

    def installed(self, names: t.Iterable[str]) -> dict[str, Package]: ...

    def config_only(self, names: t.Iterable[str]) -> list[str]:
        """Return the packages that are removed except for their configuration files."""

    def interrupted(self) -> bool:
        """Return whether a transaction was interrupted. The package manager does not work until it is repaired.

        Waits for a transaction that is still running. Raises HostError if that takes too long.
        """

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        """Raise HostError if repair() of the toolkit's packages ``own`` is not enough."""

    def repair_command(self, names: t.Sequence[str]) -> str:
        """Return the command with which an administrator completes half installed packages; empty if there is none."""

    def repair(self, own: t.Sequence[str]) -> None:
        """Configure the half-installed packages ``own``, and no others. Raises HostError if that is not enough."""

    def candidates(self, names: t.Sequence[str], offline: bool = False, own: bool = False) -> Offers:
        """Return the available versions, newest first.

        ``offline`` uses only the lists that are on the host, and ``own`` only this collection's repository.
        """

    def hiding(self, names: t.Sequence[str]) -> list[str]:
        """Return the settings of the host that may hide versions of packages, each with its file and line."""

    def refresh(self, everything: bool = False) -> None:
        """Fetch the list of this collection's repository, or of all repositories.

        All lists are fetched if ``everything`` is true, or if the host does not have this collection's repository.
        """

    def describe(self, files: t.Iterable[str]) -> list[PackageFile]: ...

    def architecture(self) -> str: ...

    def require_transactions(self) -> None:
        """Raise HostError if the packages of this host cannot change while it runs."""

    def preview(self, change: Change, offline: bool = False) -> Preview: ...

    def apply(self, change: Change) -> None: ...

    def require_holds(self) -> None:
        """Raise HostError if versions cannot be held on this host."""

    def hold(self, packages: t.Mapping[str, str]) -> None:
        """Hold packages at the versions that they have."""

    def unhold(self, names: t.Sequence[str]) -> None: ...


# These files exist if a reboot is required. Debian and its derivatives create the first two, and libzypp the third
# (zypper needs-rebooting).
REBOOT_FILES = ("/run/reboot-required", "/run/reboot-required.pkgs", "/run/reboot-needed")


def reboot_required(host: hostfs.HostFS, manager: PackageManager | None) -> bool | None:
    """Return whether an earlier installation requires a reboot, or None if the host does not record that."""
    if not host.live:
        return None
    if any(host.exists(path) for path in REBOOT_FILES):
        return True
    return False if manager is not None and manager.records_reboot else None


class CommandError(core_errors.HostError):
    """A failure of a package manager's program.

    ``output`` are the last lines that the program printed. ``not_downloaded`` says that it could not fetch a package.
    """

    def __init__(self, action: str, output: t.Sequence[str], advice: str, not_downloaded: bool = False) -> None:
        text = " | ".join(output).rstrip(".") or "nothing"
        end = "" if text[-1] in "!?" else "."
        super().__init__(f"{action} failed. Program output: {text}{end} {advice}".rstrip())
        self.advice = advice
        self.not_downloaded = not_downloaded
        self.output = tuple(output)


def retry_while_locked(
    run: core_plan.Runner, argv: list[str], busy: t.Callable[[int, str], bool], timeout: float
) -> tuple[int, str, str]:
    """Run ``argv``, and repeat it for ``timeout`` seconds while it fails because another program holds a lock.

    ``busy`` returns whether this is the reason, from the exit status and the output.
    """
    deadline = time.monotonic() + timeout
    while True:
        status, output, errors = run(argv)
        if not status or time.monotonic() >= deadline or not busy(status, output + errors):
            return status, output, errors
        time.sleep(_PAUSE)


def wait_until_idle(busy: t.Callable[[], bool], timeout: float) -> bool:
    """Wait until ``busy`` returns false. Return whether it does so within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while busy():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)
    return True


def warnings_of(manager: PackageManager | None) -> list[str]:
    """Return warnings about side effects of transactions."""
    return [] if manager is None else list(manager.warnings)


def plain_name(name: str) -> str:
    """Return a package's name without its architecture."""
    return name.split(":", 1)[0]


def last_lines(output: str, errors: str, noise: re.Pattern[str] | None = None) -> list[str]:
    """Return the last lines of the output, without those that begin with ``noise``."""
    lines = [line.strip() for line in (output + "\n" + errors).splitlines()]
    # Some programs print the same line every second.
    return list(dict.fromkeys(line for line in lines if line and not (noise and noise.match(line))))[-_MAX_LINES:]
