# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the programs of the toolkit, compare the versions of its parts, and apply the policies of a task.

The parts are packages, which callers pass, and programs. The policies are the options running_gpu_containers and
minimum_version_policy. The table of known vulnerabilities is in constants.py.
"""

from __future__ import annotations

import posixpath
import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan


# The directory in which packages install the programs.
PROGRAM_DIR = "/usr/bin"

# The same version is 1.18.0~rc.1-1 in a Debian package, 1.18.0-0.1.rc.1 in an RPM package, and 1.18.0-rc.1 in the
# output of the programs.
_VERSION = re.compile(r"(?<![\w.])v?([0-9]+(?:\.[0-9]+)+)(?:[~-](?:[0-9][0-9.]*)?(alpha|beta|rc)\.?([0-9]*))?")
# The line in which nvidia-container-runtime prints the version of the low-level runtime, after its own version.
_LOW_LEVEL = re.compile(r"^(?:runc|crun|youki)\b", re.MULTILINE)


class Program(t.NamedTuple):
    """A program of the toolkit. ``version`` is None if the program was not run or did not report one."""

    path: str
    version: str | None


def programs(host: hostfs.HostFS, run: core_plan.Runner, folder: str = PROGRAM_DIR) -> dict[str, Program]:
    """Return the toolkit's programs by name.

    A program that is not in ``folder`` is searched in the directories of systemd services (hostfs.SERVICE_PATH). Such a
    program is not run, so its version is None.
    """
    found = {}
    for name in toolkit_constants.ALL_PROGRAMS:
        path = host.find_executable([posixpath.join(folder, name), name])
        if path is not None:
            reported = _reported_version(path, host, run) if posixpath.dirname(path) == folder.rstrip("/") else None
            found[name] = Program(path, reported)
    return found


def _reported_version(path: str, host: hostfs.HostFS, run: core_plan.Runner) -> str | None:
    if not host.live:
        return None
    # In an installation in a directory, ``path`` is a wrapper script (directory/layout.py), and the real program has
    # the suffix .real. If the driver is not loaded, the wrapper of a runtime would run the low-level runtime and print
    # that version.
    real = path + toolkit_constants.REAL_SUFFIX
    return run_version(
        [real if posixpath.basename(path) in toolkit_constants.RUNTIMES and host.is_executable(real) else path],
        host,
        run,
    ).version


class VersionOutput(t.NamedTuple):
    """What a program prints with --version.

    ``version`` is None if the output contains no version. ``output`` is, in one line, the error
    output, or the output if there is none.
    """

    version: str | None
    status: int
    output: str


def run_version(argv: t.Sequence[str], host: hostfs.HostFS, run: core_plan.Runner) -> VersionOutput:
    """Run a program of the toolkit with --version on a live host."""
    # The runtime prints its version and then fails if it finds no low-level runtime, so the status does not decide.
    status, output, errors = run(host.argv([*argv, "--version"]))
    version = next(filter(None, (upstream_version(_LOW_LEVEL.split(text)[0]) for text in (output, errors))), None)
    return VersionOutput(version, status, " ".join((errors or output).split()))


def upstream_version(text: str) -> str | None:
    """Return the first version in ``text``, or None. It is written as in NVIDIA's git tags, without a revision."""
    found = _VERSION.search(text)
    if found is None:
        return None
    number, kind, count = found.groups()
    return number if kind is None else f"{number}-{kind}.{count}" if count else f"{number}-{kind}"


def version_key(text: str) -> tuple[tuple[int, ...], tuple[str, int]]:
    """Return the sort key of a version: 1.19.10 is newer than 1.19.9, and 1.20.0 than 1.20.0-rc.2.

    A package's revision is ignored. A text without a version is older than every version.
    """
    found = _VERSION.search(text)
    if found is None:
        return (), ("", 0)
    number, kind, count = found.groups()
    parts = [int(part) for part in number.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    # "~" sorts after every letter, so that the release is newer than its release candidates.
    return tuple(parts), (kind or "~", int(count or 0))


def is_at_least(version: str | None, floor: str) -> bool:
    """Return whether a toolkit is of version ``floor`` or newer. An unknown version (None) counts as the newest."""
    return version is None or version_key(version) >= version_key(floor)


def known_vulnerabilities(version: str) -> list[toolkit_constants.Vulnerability]:
    """Return the known vulnerabilities of a toolkit of this version."""
    return [entry for entry in toolkit_constants.VULNERABILITIES if version_key(version) < version_key(entry.floor)]


def affecting_cves(
    packages: t.Mapping[str, str], programs: t.Mapping[str, Program]
) -> list[toolkit_constants.Vulnerability] | None:
    """Return the known vulnerabilities of the oldest part of a toolkit.

    Returns None if parts are installed but no version is known. ``packages`` maps installed packages to their versions.
    Packages that do not belong to the toolkit are ignored.
    """
    versions = [*_versions_of(packages).values(), *_reported_versions(programs).values()]
    known = [version for version in versions if upstream_version(version) is not None]
    if not known:
        return None if versions or programs else []
    return known_vulnerabilities(min(known, key=version_key))


def oldest_safe_version() -> str:
    """Return the oldest version without a known vulnerability."""
    return max((entry.floor for entry in toolkit_constants.VULNERABILITIES), key=version_key)


def single_version(packages: t.Mapping[str, str], programs: t.Mapping[str, Program]) -> str | None:
    """Return the one version of the parts, without a package's revision. Parts without a known version are ignored.

    Returns None if no part has a known version, or if the parts have several.
    """
    versions = {*_versions_of(packages).values(), *_reported_versions(programs).values()}
    return versions.pop() if len(versions) == 1 else None


def package_set(packages: t.Collection[str]) -> tuple[str, ...]:
    """Return the packages that belong to an installed toolkit: the base package if it is alone, otherwise all."""
    base = packages_base.PACKAGE_SETS[packages_base.BASE]
    return base if {*packages} & {*packages_base.PACKAGES} == {*base} else packages_base.PACKAGES


def version_mismatches(
    packages: t.Mapping[str, str],
    programs: t.Mapping[str, Program],
    folder: str = PROGRAM_DIR,
    required: t.Collection[str] = packages_base.PACKAGES,
) -> list[str]:
    """Return messages about parts of the toolkit that do not belong together.

    These are missing parts, parts of another version or without a version, and programs outside ``folder``.
    ``packages`` maps installed packages to their versions. Packages that do not belong to the toolkit are ignored. If
    there are none of the toolkit, that is not a problem, since a toolkit need not come from packages. The packages
    ``required`` and their programs must be there.
    """
    versions, reported = _versions_of(packages), _reported_versions(programs)
    return [
        *_package_mismatches(versions, required),
        *_path_mismatches(programs, folder.rstrip("/"), required),
        *_program_mismatches(set(versions.values()), programs, reported),
    ]


def _versions_of(packages: t.Mapping[str, str]) -> dict[str, str]:
    return {
        name: upstream_version(packages[name]) or packages[name] for name in packages_base.PACKAGES if name in packages
    }


def _reported_versions(programs: t.Mapping[str, Program]) -> dict[str, str]:
    return {name: program.version for name, program in programs.items() if program.version is not None}


def _package_mismatches(versions: t.Mapping[str, str], required: t.Collection[str]) -> t.Iterator[str]:
    missing = [name for name in required if name not in versions]
    if versions and missing:
        subject = _subject(missing, "The package", "The packages")
        yield f"{subject} not installed, but other packages of the toolkit are."
    if len(set(versions.values())) > 1:
        each = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield f"The packages have different versions: {each}."


def _path_mismatches(programs: t.Mapping[str, Program], folder: str, required: t.Collection[str]) -> t.Iterator[str]:
    expected = toolkit_constants.programs_in(required, toolkit_constants.PROGRAMS)
    missing = [name for name in expected if name not in programs]
    if missing:
        yield f"{_subject(missing, 'The program', 'The programs')} not installed."
    for name, program in programs.items():
        if posixpath.dirname(program.path) != folder:
            yield f"The program {name} is not in {folder}, but in {posixpath.dirname(program.path)}."


def _program_mismatches(
    package_versions: set[str], programs: t.Mapping[str, Program], reported: t.Mapping[str, str]
) -> t.Iterator[str]:
    if len(package_versions) == 1:
        (expected,) = package_versions
        for name, version in reported.items():
            if version != expected:
                yield f"{programs[name].path} has version {version}, but the packages have {expected}."
    elif len(set(reported.values())) > 1:
        each = ", ".join(f"{programs[name].path} {version}" for name, version in reported.items())
        yield f"The programs have different versions: {each}."
    folders = {posixpath.dirname(programs[name].path) for name in reported}
    for name, program in programs.items():
        # Other programs of the same directory report a version, so this one should too.
        if name not in reported and posixpath.dirname(program.path) in folders:
            yield f"{program.path} reports no version. Run it with --version to see why."


def _subject(names: t.Sequence[str], one: str, several: str) -> str:
    """Return the beginning of a sentence: "ONE NAME is" or "SEVERAL NAME, NAME are"."""
    return f"{one} {names[0]} is" if len(names) == 1 else f"{several} {', '.join(names)} are"


class Policies:
    """The policies of a task, and all warnings of the task (``warnings``).

    ``running_gpu_containers`` and ``minimum_version_policy`` are fail, warn or ignore. ``minimum_version`` is None for
    the oldest version without a known vulnerability.

    Raises NvidiaError for an invalid ``minimum_version``.
    """

    def __init__(self, running_gpu_containers: str, minimum_version: str | None, minimum_version_policy: str) -> None:
        if minimum_version is not None and upstream_version(minimum_version) is None:
            raise errors.NvidiaError(
                f"Invalid {errors.option:minimum_version} {minimum_version!r}. Use a version such as"
                f" {oldest_safe_version()}."
            )
        self._running_gpu_containers = running_gpu_containers
        self._minimum_version = minimum_version
        self._minimum_version_policy = minimum_version_policy
        self.warnings: list[str] = []

    def check_containers(self, containers: t.Sequence[str], harm: str, advice: str, remedy: str) -> None:
        """Raise HostError, or warn once, as the policy running_gpu_containers requires, if there are ``containers``.

        Args:
            containers: the running containers that the change affects.
            harm: the effect on them, as the end of a sentence about the containers.
            advice: what to do before the change. It is the beginning of a sentence.
            remedy: the sentence that tells what to do after the change.
        """
        if containers:
            problem = f"The containers {', '.join(containers)} {harm}"
            self.refuse_or_warn(problem, advice, f"{problem} {remedy}")

    def refuse_or_warn(self, problem: str, advice: str, warning: str) -> None:
        """Raise HostError, or add ``warning`` once, as the policy running_gpu_containers requires.

        ``problem`` and ``advice`` are the parts of the error message.
        """
        policy = self._running_gpu_containers
        if policy == "fail":
            raise errors.HostError(
                f"{problem} {advice}, or set {errors.option:running_gpu_containers}: warn to continue."
            )
        if policy == "warn":
            self.warn(warning)

    def warn(self, warning: str) -> None:
        """Add ``warning``, unless an earlier call has added it."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def check_minimum(self, version: str | None) -> None:
        """Raise NvidiaError, or warn once, as minimum_version_policy requires, if ``version`` is too old."""
        policy = self._minimum_version_policy
        if version is None or policy == "ignore":
            return
        problem = below_minimum(version, self._minimum_version or oldest_safe_version())
        if problem is None:
            return
        if policy == "fail":
            raise errors.NvidiaError(
                f"{problem} Choose a newer version, or set {errors.option:minimum_version_policy}: warn."
            )
        self.warn(problem)


def below_minimum(version: str, floor: str) -> str | None:
    """Return a message if ``version`` is older than ``floor`` or cannot be compared with it, otherwise None."""
    if upstream_version(version) is None:
        return f"Version {version!r} of the toolkit cannot be compared with the minimum version {floor}."
    if version_key(version) >= version_key(floor):
        return None
    cves = ", ".join(f"{entry.name} ({entry.about})" for entry in known_vulnerabilities(version))
    known = f" Its known vulnerabilities are {cves}." if cves else ""
    return f"Version {upstream_version(version)} of the toolkit is older than {floor}.{known}"
