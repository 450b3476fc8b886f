# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Choose package versions that belong together, and refuse unrelated changes.

``names`` are the packages that must have one version, which pending_changes.py selects.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import text as core_text
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import installed as toolkit_installed

LATEST = "latest"
# The architecture of packages that run on every machine, as dpkg and rpm name it.
_ANY_ARCHITECTURE = ("all", "noarch")


class Target(t.NamedTuple):
    """The full version that all packages get, and its origin. An installed version that stays has none."""

    version: str
    origin: str | None = None


class NotOfferedError(errors.HostError):
    """The error for a version that no source offers of all packages."""


def is_version(full: str, requested: str) -> bool:
    """Return whether a package's full version is the ``requested`` one: 1.19.1 is 1.19.1-1, but not 1.19.10-1."""
    # In an RPM package, 1.19.1-0.1.rc.1 is a release candidate of 1.19.1, and not one of its revisions.
    return full == requested or (
        full.startswith(requested + "-")
        and toolkit_installed.upstream_version(full) == toolkit_installed.upstream_version(requested)
    )


def common_version(packages: t.Mapping[str, packages_base.Package], names: t.Sequence[str]) -> str | None:
    """Return the full version of all ``names``. None if one is missing, half installed or of another version."""
    found = [packages[name] for name in names if name in packages and packages[name].complete]
    versions = {package.version for package in found}
    return versions.pop() if len(found) == len(names) and len(versions) == 1 else None


def satisfies(packages: t.Mapping[str, packages_base.Package], requested: str | None, names: t.Sequence[str]) -> bool:
    """Return whether the installed packages satisfy ``requested``. This needs no package lists."""
    found = common_version(packages, names)
    return found is not None and (requested in (None, LATEST) or is_version(found, str(requested)))


def choose(
    offers: packages_base.Offers,
    requested: str | None,
    installed: t.Mapping[str, packages_base.Package],
    names: t.Sequence[str],
    own_source: str | None = None,
) -> Target:
    """Return the newest offered version that matches ``requested`` and exists for all ``names``.

    Without a requested version, this is the version that the package manager prefers. The installed version is kept if
    the sources offer only older ones, also if only their revision is older. ``own_source`` is the file of this
    collection's source, if that is the only one with offers. Raises NotOfferedError.
    """
    common = [
        entry
        for entry in offers.get(names[0], ())
        if all(entry.version in [other.version for other in offers.get(name, ())] for name in names)
    ]
    if requested in (None, LATEST):
        found = next((entry for entry in common if _preferred(offers, entry.version, names, all)), None)
        # A repository that is being updated may have some of the packages earlier than others.
        found = found or next((entry for entry in common if _preferred(offers, entry.version, names, any)), None)
        current = common_version(installed, names)
        if current and (found is None or _order(current) > _order(found.version)):
            return Target(current)
        newest = "" if found is None else found.version
        present = [(name, installed[name].version) for name in names if name in installed]
        newer = [f"{name} {full}" for name, full in present if newest and _order(full) > _order(newest)]
        if newer:
            start = "the package sources offer" if own_source is None else f"{own_source} offers"
            raise NotOfferedError(
                f"{', '.join(newer)} would be downgraded, because {start} only {_listed(common)} of all packages. Set"
                f" {errors.option:version} to permit that."
            )
    else:
        found = next((entry for entry in common if is_version(entry.version, str(requested))), None)
    if found is None:
        raise NotOfferedError(_not_offered(offers, requested, names, own_source))
    return Target(found.version, found.origin or None)


def _order(full: str) -> tuple[t.Any, ...]:
    """Return the sort key of a package's full version: 1.19.1-2 is newer than 1.19.1-1."""
    return (toolkit_installed.version_key(full), core_text.parse_version(full.partition("-")[2]) or ())


def _preferred(
    offers: packages_base.Offers,
    version: str,
    names: t.Sequence[str],
    quantifier: t.Callable[[t.Iterable[bool]], bool],
) -> bool:
    entries = [entry for name in names for entry in offers[name] if entry.version == version]
    return quantifier(entry.preferred for entry in entries)


def _not_offered(
    offers: packages_base.Offers, requested: str | None, names: t.Sequence[str], own_source: str | None
) -> str:
    unnamed = requested in (None, LATEST)
    packages = names[0] if len(names) == 1 else f"all {len(names)} packages of the toolkit"
    meant = f"{'a version' if unnamed else f'version {requested}'} of {packages}"
    preferred = " that the package manager prefers" if unnamed else ""
    listed = {name: _listed(offers.get(name, ())) for name in names}
    # Usually a repository offers the same versions of all packages.
    if len(set(listed.values())) == 1:
        lines = [f"{listed[names[0]]}"]
    else:
        lines = [f"{name} {entries}" for name, entries in listed.items()]
    start, advice = "No package source offers", "correct the package sources"
    if own_source is not None:
        start = f"{own_source}, the only source that this task uses for the toolkit's packages, does not offer"
        advice = f"install the packages from another source and set {errors.option:source}: existing"
    return (
        f"{start} {meant}{preferred}. Available: {'; '.join(lines)}."
        f" Set {'' if unnamed else 'another '}{errors.option:version}, or {advice}."
    )


def _listed(entries: t.Sequence[packages_base.Candidate]) -> str:
    return ", ".join(f"{entry.version} ({entry.origin or 'origin unknown'})" for entry in entries) or "none"


def version_of_files(
    files: t.Sequence[packages_base.PackageFile], architecture: str, requested: str | None, names: t.Sequence[str]
) -> str:
    """Return the full version of the packages ``names`` in ``files``.

    Raises NvidiaError unless the files are exactly these packages, of one version and for this host.
    """
    by_name: dict[str, packages_base.PackageFile] = {}
    for file in files:
        if file.name not in names:
            raise errors.NvidiaError(_unsuitable_file(file, names))
        if file.name in by_name:
            raise errors.NvidiaError(
                f"{by_name[file.name].path} and {file.path} both contain the package {file.name}. Remove one of them."
            )
        if file.architecture not in (architecture, *_ANY_ARCHITECTURE):
            raise errors.NvidiaError(
                f"{file.path} is for {file.architecture}, but this host is {architecture}. Use another package."
            )
        by_name[file.name] = file
    missing = [name for name in names if name not in by_name]
    if missing:
        raise errors.NvidiaError(
            f"{errors.option:files} does not contain {', '.join(missing)}. Add what is missing, because these packages"
            f" are installed together: {', '.join(names)}."
        )
    versions = {file.version for file in files}
    if len(versions) > 1:
        each = ", ".join(f"{file.path} {file.version}" for file in files)
        raise errors.NvidiaError(
            f"{errors.option:files} contains several versions: {each}. Use packages of one version."
        )
    found = versions.pop()
    if requested not in (None, LATEST) and not is_version(found, str(requested)):
        raise errors.NvidiaError(
            f"{errors.option:files} contains version {found}, but {errors.option:version} is {requested}. Change one"
            " of the two options."
        )
    return found


def _unsuitable_file(file: packages_base.PackageFile, names: t.Sequence[str]) -> str:
    is_other = file.name in packages_base.PACKAGES
    with_set = f" with {errors.option:packages}: {packages_base.BASE}" if is_other else ""
    step = f" Remove it, or set {errors.option:packages}: {packages_base.FULL}." if is_other else ""
    return (
        f"{file.path} is the package {file.name}, but {errors.option:files}{with_set} accepts only"
        f" {', '.join(names)}.{step}"
    )


def refuse_unrelated_changes(
    preview: packages_base.Preview, own: t.Collection[str], removable: t.Collection[str]
) -> None:
    """Raise HostError if a change would also change other packages. The packages in ``removable`` may be removed."""
    held = [name for name in preview.held if packages_base.plain_name(name) not in (*own, *removable)]
    if held:
        raise errors.HostError(
            f"The transaction would also change or remove held packages: {', '.join(held)}. Release them, or choose a"
            " version of the toolkit that is compatible with them."
        )
    removed = [name for name in preview.remove if packages_base.plain_name(name) not in removable]
    if removed:
        raise errors.HostError(
            f"The transaction would also remove {', '.join(removed)}. Remove these packages first if they are not"
            " needed." + _former_packages_advice(preview, removed)
        )
    older = [name for name in preview.downgrade if packages_base.plain_name(name) not in own]
    if older:
        raise errors.HostError(
            f"The transaction would also downgrade {', '.join(older)}. Choose a version of the toolkit that is"
            " compatible with these packages."
        )


def _former_packages_advice(preview: packages_base.Preview, removed: t.Sequence[str]) -> str:
    known = [name for name in removed if packages_base.plain_name(name) in packages_base.REPLACED_PACKAGES]
    # A removal does not handle former packages.
    if not known or not preview.install:
        return ""
    return f" Set {errors.option:remove_conflicts}: true to remove former packages of the toolkit."


def refuse_held(held: t.Sequence[str]) -> None:
    """Raise HostError for held packages that would have to change if the task does not set ``hold``."""
    if held:
        raise errors.HostError(
            f"Held packages must change: {', '.join(held)}. Set {errors.option:hold}: true to change them and hold"
            f" them again, or {errors.option:hold}: false to release them."
        )


def existing_problem(
    packages: t.Mapping[str, str],
    programs: t.Mapping[str, toolkit_installed.Program],
    requested: str | None,
    policy: str,
    names: t.Sequence[str],
) -> str | None:
    """Return why the installed toolkit does not satisfy the task, or None.

    ``packages`` are full versions by name, ``requested`` is the requested version, and ``policy`` is the
    minimum_version_policy. The packages ``names`` are required, and the others may be there too.
    """
    if not packages and not programs:
        return (
            f"{errors.option:source} is existing, but the NVIDIA Container Toolkit is not installed on this host."
            " Install it first."
        )
    missing = toolkit_installed.version_mismatches(packages, programs, required=names)
    if missing:
        return (
            f"{errors.option:source} is existing, but the installed toolkit is incomplete or has several versions:"
            f" {' '.join(missing)}"
        )
    version = toolkit_installed.single_version(packages, programs)
    requested = None if requested == LATEST else requested
    if version is None or toolkit_installed.upstream_version(version) is None:
        if requested is None and policy != "fail":
            return None
        return (
            f"{errors.option:source} is existing, but the version of the installed toolkit is unknown: its programs"
            f" report none, or are in an offline tree. Remove {errors.option:version} and set"
            f" {errors.option:minimum_version_policy}: warn, or run the task on the running host."
        )
    if requested is not None and not _matches_request(version, set(packages.values()), requested):
        present = (
            version
            if requested == toolkit_installed.upstream_version(requested)
            else ", ".join(sorted(set(packages.values()))) or version
        )
        return (
            f"{errors.option:source} is existing, but the installed version is {present}, not {requested}. Change one"
            " of them."
        )
    return None


def _matches_request(version: str, full: t.Collection[str], requested: str) -> bool:
    if version != toolkit_installed.upstream_version(requested):
        return False
    # Only packages have a revision.
    return requested == version or all(is_version(each, requested) for each in full)
