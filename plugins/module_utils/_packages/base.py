# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all package managers share: commands, transactions, versions and locks."""

from __future__ import annotations

import time
import types
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors as core_errors

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


_PAUSE = 2.0
# How many of a program's last lines an error quotes.
_QUOTED = 10


class Package(t.NamedTuple):
    """An installed package; ``whole`` is false where a run was cut off before it was configured."""

    version: str
    held: bool = False
    whole: bool = True


class Candidate(t.NamedTuple):
    """A version on offer.

    ``origin`` is the source in the package manager's own words; ``preferred`` says that the package manager would take
    this one if it were not told which.
    """

    version: str
    origin: str
    preferred: bool = False


class PackageFile(t.NamedTuple):
    """What a package's file says of itself."""

    path: str
    name: str
    version: str
    architecture: str


class Change(t.NamedTuple):
    """What one transaction does.

    ``install`` gives full versions by name, ``files`` the packages' files instead.  What is removed along with an
    installation keeps its configuration files; what is removed alone loses them.  ``change_held`` allows a held
    package to change.
    """

    install: t.Mapping[str, str] = types.MappingProxyType({})
    files: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    change_held: bool = False


class Preview(t.NamedTuple):
    """What the package manager would do: versions that come, by name, and the names of what goes or goes back.

    ``held`` are those of them whose version somebody holds.
    """

    install: t.Mapping[str, str] = types.MappingProxyType({})
    remove: tuple[str, ...] = ()
    downgrade: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


class Commands(t.NamedTuple):
    """Runners for what only reads, for what fetches lists, and for transactions, which nobody may cut off."""

    read: core_plan.Runner
    fetch: core_plan.Runner
    change: core_plan.Runner

    @classmethod
    def of(cls, run: core_plan.Runner) -> Commands:
        return cls(run, run, run)


class PackageManager(t.Protocol):
    """The packages of one host.  Every method that runs a program raises CommandError if it fails."""

    @property
    def name(self) -> str: ...

    @property
    def readable(self) -> bool:
        """Whether ``installed`` can tell; a database that only its own program reads is closed in an offline tree."""

    def installed(self, names: t.Iterable[str]) -> dict[str, Package]: ...

    def leftovers(self, names: t.Iterable[str]) -> list[str]:
        """Those of which only configuration files are left."""

    def interrupted(self) -> bool:
        """Whether a transaction was interrupted, so that the package manager cannot work until it is completed.

        Waits for one that is still at work.  Raises HostError if that takes too long.
        """

    def refuse_interrupted(self, own: t.Collection[str]) -> None:
        """Raises HostError if an interrupted transaction needs more than complete() with the packages ``own``."""

    def complete(self, own: t.Sequence[str]) -> None:
        """Configure the half installed packages ``own``, and no others.  Raises HostError if that is not enough."""

    def candidates(self, names: t.Sequence[str], offline: bool = False) -> dict[str, list[Candidate]]:
        """What is on offer, newest first; ``offline`` asks only the lists that are there."""

    def refresh(self, everything: bool = False) -> None:
        """Fetch the list of our repository, or those of all."""

    def describe(self, files: t.Iterable[str]) -> list[PackageFile]: ...

    def architecture(self) -> str: ...

    def preview(self, change: Change, offline: bool = False) -> Preview: ...

    def carry_out(self, change: Change) -> None: ...

    def require_holds(self) -> None:
        """Raises HostError if versions cannot be held on this host."""

    def hold(self, packages: t.Mapping[str, str]) -> None:
        """Hold packages at the versions that they have."""

    def unhold(self, names: t.Sequence[str]) -> None: ...


# Where Debian and its kin note that something waits for a reboot.
_REBOOT_FILES = ("/run/reboot-required", "/run/reboot-required.pkgs")


def reboot_required(host: hostfs.HostFS, manager: PackageManager | None) -> bool | None:
    """Whether an earlier installation waits for a reboot; None where nobody notes that."""
    if not host.live:
        return None
    if any(host.exists(path) for path in _REBOOT_FILES):
        return True
    return False if manager is not None and manager.name == "apt" else None


class CommandError(core_errors.HostError):
    """A package manager's program that failed; ``said`` are its own last lines."""

    def __init__(self, doing: str, said: t.Sequence[str], advice: str) -> None:
        words = " | ".join(said).rstrip(".") or "nothing"
        super().__init__(f"{doing} failed. It says: {words}{'' if words[-1] in '!?' else '.'} {advice}".rstrip())
        self.said = tuple(said)


def retry_while_locked(
    run: core_plan.Runner, argv: list[str], busy: t.Callable[[str], bool], timeout: float
) -> tuple[int, str, str]:
    """Run ``argv``, again and again for ``timeout`` seconds while it fails because somebody else is at work."""
    deadline = time.monotonic() + timeout
    while True:
        status, output, errors = run(argv)
        if not status or time.monotonic() >= deadline or not busy(output + errors):
            return status, output, errors
        time.sleep(_PAUSE)


def wait_until_idle(busy: t.Callable[[], bool], timeout: float) -> bool:
    """Whether what is ``busy`` comes to an end within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while busy():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)
    return True


def notes_of(manager: PackageManager | None) -> list[str]:
    """What a package manager did beside its work and people should know, in sentences."""
    return list(getattr(manager, "notes", ()))


def plain_name(name: str) -> str:
    """A package's name without its architecture."""
    return name.split(":", 1)[0]


def last_words(output: str, errors: str, noise: t.Callable[[str], bool]) -> list[str]:
    """The last lines that say something."""
    lines = [line.strip() for line in (output + "\n" + errors).splitlines()]
    # Some say the same each second.
    return list(dict.fromkeys(line for line in lines if line and not noise(line)))[-_QUOTED:]
