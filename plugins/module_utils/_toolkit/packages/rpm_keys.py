# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the key of the repository for dnf or zypper, import it into rpm, and remove previous and unused keys from rpm.

dnf trusts every key in the file that ``gpgkey`` names, and neither dnf nor rpm replaces a key by its renewed version.
zypper trusts every key in rpm, for each repository. If rpm lacks the key of a repository, zypper can import one that
the repository itself contains, so this module never lets it import any.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import errors, lock
from ansible_collections.gpufleet.nvidia.plugins.module_utils._packages import base as packages_base

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.packages import (
        repository as toolkit_repository,
    )


# Without --no-autostart, gpg starts an agent for a file with a secret key.
_GPG = (
    "gpg", "--batch", "--no-tty", "--no-options", "--no-autostart", "--no-default-keyring", "--keyring=/dev/null",
    "--trust-model=always", "--with-colons", "--show-keys",
)  # fmt: skip
_QUERY = ("rpm", "-qa", "--qf", "gpg-pubkey-%{VERSION}-%{RELEASE}\\n%{DESCRIPTION}\\n", "gpg-pubkey")
# rpm names a key by the last digits of its fingerprint (8, or all since rpm 6), and by the time of its creation.
_RPM_NAME = re.compile(r"gpg-pubkey-([0-9a-f]{8,40})-")
_KEY_FILE = re.compile(r"/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-([0-9A-Fa-f]{16})$")
# A file with one block in which gpg sees one key may have a second block that only other programs can read.
_BLOCK = b"-----BEGIN PGP "


class WrongKeyError(errors.HostError):
    """A key file contains another key than the configured one, or more than this key."""


class KeyListing(t.NamedTuple):
    """What gpg lists for a file.

    ``records`` are the keys and subkeys with their expiry dates and fingerprints, in the order of the file.
    ``complete`` says that the file is one armored block and that gpg has read all of it.
    """

    records: tuple[tuple[str, ...], ...]
    complete: bool

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprints of all primary keys."""
        pairs = zip(self.records, self.records[1:])
        return [fpr[-1] for key, fpr in pairs if key[0] in ("pub", "sec") and fpr[0] == "fpr"]

    def is_only(self, fingerprint: str) -> bool:
        """Return whether the file contains this public key and no other key."""
        primary = [record[0] for record in self.records if record[0] in ("pub", "sec")]
        return self.complete and primary == ["pub"] and self.fingerprints == [fingerprint]


class KeyPlan(t.NamedTuple):
    """The required changes in rpm.

    ``imports`` are key files to import. ``replaced`` and ``unused`` are names in rpm: other versions of the imported
    keys, and keys whose files are removed. ``unused_files`` are these files. ``kept`` are the names of the other keys.
    """

    imports: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unused_files: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def has_changes(self) -> bool:
        return bool(self.imports or self.replaced or self.unused)

    def diff(self) -> list[dict[str, str]]:
        """Return the diff: the names of removed keys, and the files of imported ones."""
        before = "".join(f"{name}\n" for name in (*self.replaced, *self.unused))
        after = "".join(f"{path}\n" for path in self.imports)
        headers = {"before_header": "keys of rpm", "after_header": "keys of rpm"}
        return [{**headers, "before": before, "after": after}] if self.has_changes else []


def plan_keys(
    host: hostfs.HostFS,
    run: core_plan.Runner,
    repository: toolkit_repository.RepositoryPlan,
    files: t.Sequence[toolkit_repository.RepositoryFile],
    fingerprint: str | None,
) -> KeyPlan:
    """Return the plan after which rpm has exactly the keys in ``files``, and none whose file ``repository`` removes.

    Keys in ``files`` are not checked and not imported if ``fingerprint`` is None. In check mode, a key that is not
    fetched yet is not checked. Raises WrongKeyError and HostError.
    """
    keys = [file for file in files if fingerprint and _KEY_FILE.search(file.path)]
    removed = {file.path: found[1] for file in repository.restored for found in [_KEY_FILE.search(file.path)] if found}
    if not keys and not removed:
        return KeyPlan()
    if keys:
        require_gpg(host)
    installed = _installed_keys(host, run)
    same = _names_of(installed, fingerprint or "") if keys else []
    imports: list[str] = []
    replaced: list[str] = []
    for file in keys:
        path = host.resolve(file.path)
        if file.source is not None and not host.exists(file.source):
            imports += [] if same else [path]
            continue
        content = _content_of(host, repository, path)
        key = _checked_key(host, run, path, content, str(fingerprint))
        present = {name: list_keys(host, run, installed[name].encode("utf-8")) for name in same}
        if key.records not in [listing.records for listing in present.values()]:
            imports.append(path)
            replaced += [name for name, listing in present.items() if fingerprint in listing.fingerprints]
    unused = [name for digits in removed.values() for name in _names_of(installed, digits) if name not in same]
    kept = [name for name in installed if name not in (*replaced, *unused)]
    return KeyPlan(tuple(imports), tuple(replaced), tuple(unused), tuple(removed), tuple(kept))


def require_gpg(host: hostfs.HostFS) -> None:
    """Raise HostError if the host lacks the program that checks keys."""
    if host.find_executable(["gpg"]) is None:
        raise errors.HostError(
            "The program gpg, which checks the key of the repository, is missing. Install the package gnupg2, on SUSE"
            " gpg2."
        )


def _content_of(host: hostfs.HostFS, repository: toolkit_repository.RepositoryPlan, path: str) -> bytes:
    """Return what the file will contain."""
    planned = {file.path: file.after for file in repository.files}
    return (planned[path] if path in planned else host.read(path)) or b""


def _checked_key(host: hostfs.HostFS, run: core_plan.Runner, path: str, content: bytes, fingerprint: str) -> KeyListing:
    listing = list_keys(host, run, content)
    if not listing.is_only(fingerprint):
        found = ", ".join(listing.fingerprints) or "no key"
        raise WrongKeyError(
            f"The key for {path} must be one armored block with exactly one key, which has the fingerprint"
            f" {fingerprint}. gpg found: {found}{'' if listing.complete else ', and other data'}. Check"
            f" nvidia_toolkit_key_url (or nvidia_toolkit_key) and {errors.option:key_fingerprint}."
        )
    return listing


def list_keys(host: hostfs.HostFS, run: core_plan.Runner, content: bytes) -> KeyListing:
    """Return what gpg lists for a file with this content. Raises HostError."""
    # gpg needs a home directory. It must not use or change that of a user.
    with lock.temp_directory(host, "the key of the repository") as (process_path, home):
        try:
            with open(f"{process_path}/key.asc", "wb") as file:
                file.write(content)
        except OSError as error:
            raise errors.os_error(f"The key of the repository in {lock.TEMP_DIR}", "written", error) from error
        status, output, _errors = run(host.argv([*_GPG, f"--homedir={home}", f"{home}/key.asc"]))
    rows = [line.split(":") for line in output.splitlines()]
    # Type, validity, length, algorithm, key ID, creation, expiry; and the fingerprint.
    records = tuple((*row[:7], *row[9:10]) for row in rows if row[0] in ("pub", "sec", "sub", "ssb", "fpr"))
    return KeyListing(records, not status and content.count(_BLOCK) == 1)


# -- rpm ---------------------------------------------------------------------------------------------------------------


def apply_keys(host: hostfs.HostFS, run: core_plan.Runner, plan: KeyPlan) -> None:
    """Change the keys in rpm. zypper needs the key before it fetches a list, and must not accept the previous one.

    Raises CommandError.
    """
    # Neither dnf nor rpm imports the new version of a key while rpm has the previous one.
    remove_keys(host, run, (*plan.replaced, *plan.unused))
    import_keys(host, run, plan.imports)


def undo_keys(host: hostfs.HostFS, run: core_plan.Runner, plan: KeyPlan) -> None:
    """Undo apply_keys(), after the key files have their previous content again. Raises CommandError."""
    if not plan.has_changes:
        return
    if plan.imports:
        digits = [found[1] for found in map(_KEY_FILE.search, plan.imports) if found]
        present = _installed_keys(host, run)
        imported = [name for each in digits for name in _names_of(present, each) if name not in plan.kept]
        remove_keys(host, run, imported)
    previous = [*(plan.imports if plan.replaced else ()), *(plan.unused_files if plan.unused else ())]
    import_keys(host, run, [path for path in previous if host.exists(path)])


def remove_keys(host: hostfs.HostFS, run: core_plan.Runner, names: t.Sequence[str]) -> None:
    """Remove keys from rpm by their names in rpm. Raises CommandError."""
    if names:
        _run_rpm(host, run, ["rpm", "--erase", "--allmatches", *names])


def import_keys(host: hostfs.HostFS, run: core_plan.Runner, paths: t.Sequence[str]) -> None:
    """Import key files into rpm. rpm accepts a key that it has already.

    Raises CommandError.
    """
    if paths:
        _run_rpm(host, run, ["rpm", "--import", *paths])


def _installed_keys(host: hostfs.HostFS, run: core_plan.Runner) -> dict[str, str]:
    """Return the keys of rpm as armored blocks by their names."""
    entries = re.split(r"^(?=gpg-pubkey-)", _run_rpm(host, run, list(_QUERY)), flags=re.MULTILINE)
    return {name: block for name, _line_end, block in (entry.partition("\n") for entry in entries) if block}


def _names_of(installed: t.Iterable[str], digits: str) -> list[str]:
    """Return the names of the keys whose fingerprints may end with ``digits``."""
    wanted = digits.lower()
    found = [(name, _RPM_NAME.match(name)) for name in installed]
    return [name for name, part in found if part and (wanted.endswith(part[1]) or part[1].endswith(wanted))]


def _run_rpm(host: hostfs.HostFS, run: core_plan.Runner, argv: list[str]) -> str:
    status, output, problem = run(host.argv(argv))
    if status:
        lines = packages_base.last_lines(output, problem)
        raise packages_base.CommandError(
            " ".join(argv[:2]), lines, "Correct what rpm reports on this host, and run the task again."
        )
    return output
