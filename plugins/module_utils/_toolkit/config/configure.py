# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan and write the toolkit's config.toml: settings, profiles and removal.

settings.py defines the settings and checks their values.
"""

from __future__ import annotations

import difflib
import typing as t

from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import apply, errors, lock, trusted_paths
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import constants as core_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import plan as core_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import records as core_records
from ansible_collections.gpufleet.nvidia.plugins.module_utils._documents import toml_document, toml_parser
from ansible_collections.gpufleet.nvidia.plugins.module_utils._engines import toml_plan
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit import constants as toolkit_constants
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit.config import settings as toolkit_settings

if t.TYPE_CHECKING:
    from ansible_collections.gpufleet.nvidia.plugins.module_utils._core import hostfs

    KeyPath = t.Tuple[str, ...]

    # A value of None resets the setting to its default.
    Values = t.Dict[KeyPath, t.Any]


_LDCONFIG_PATHS = {
    toolkit_settings.path_of(key) for key in (toolkit_settings.LDCONFIG_KEY, toolkit_settings.ALLOW_LDCONFIG_KEY)
}


class ConfigPlan(t.NamedTuple):
    """The file before and after, and the resulting settings.

    ``settings`` are the effective settings. ``changed_keys`` are the settings whose values in the file change. Both
    use dotted keys.
    """

    file: core_plan.PlannedFile
    settings: dict[str, t.Any]
    changed_keys: tuple[str, ...]
    warnings: tuple[str, ...]


class ToolkitConfigFile(t.NamedTuple):
    """The content of config.toml and the record of its original.

    ``content`` is None if the file does not exist. ``defaults`` are those that settings.host_defaults() returns.
    ``in_container`` is whether the host is a system container.
    """

    path: str
    content: bytes | None
    record: core_records.OriginalFile | None
    defaults: t.Mapping[str, str] = toolkit_settings.NO_DEFAULTS
    in_container: bool = False

    def present(self, request: SettingsRequest) -> ConfigPlan:
        """Return the plan that applies ``request``. Raises NvidiaError before anything is written."""
        edit = _ConfigEdit(self)
        values = request.values()
        for path in sorted(values, key=_position):
            edit.put(path, values[path])
        for path, debug_values in request.debug_settings_to_reset().items():
            edit.reset_debug(path, debug_values)
        if request.exclusive and self.content is not None:
            toml_plan.revert_own_entries(edit)
        plan = self._plan(edit)
        if self.content is None and plan.file.changed and not request.create:
            raise errors.NvidiaError(
                f"{self.path} does not exist, and {errors.option:create} is false. Install the NVIDIA Container"
                f" Toolkit, or set {errors.option:create}: true."
            )
        if not _LDCONFIG_PATHS.isdisjoint(values):
            toolkit_settings.check_ldconfig(
                toml_document.TomlDocument.from_bytes(self.path, plan.file.after or b"").data
            )
        return plan

    def absent(self) -> ConfigPlan:
        """Return the plan that removes what earlier runs wrote."""
        edit = _ConfigEdit(self)
        if self.content is not None:
            toml_plan.revert_own_entries(edit)
        return self._plan(edit)

    def _plan(self, edit: _ConfigEdit) -> ConfigPlan:
        file = edit.planned_file()
        final = toml_document.TomlDocument.from_bytes(self.path, file.after or b"")
        settings = toolkit_settings.effective(final.data, self.defaults)
        refused = toolkit_settings.refused_values(final.data)
        unsafe = toolkit_settings.unsafe_settings(settings, refused, self.in_container)
        warnings = (*map(str, toolkit_settings.invalid_values(final)), *unsafe)
        return ConfigPlan(file, settings, _changed(edit.before, final), warnings)


class _ConfigEdit(core_plan.TrackedEdit[toml_document.TomlDocument]):
    """The changes to config.toml. A commented setting is written below its comment, and the comment stays."""

    def __init__(self, file: ToolkitConfigFile) -> None:
        super().__init__(toml_document.TomlDocument.from_bytes, file.path, file.content, file.record)
        self._defaults = file.defaults

    def reset_debug(self, path: KeyPath, debug_values: tuple[t.Any, ...]) -> None:
        """Restore the setting at ``path`` if this collection wrote it, and reset a value that is in ``debug_values``.

        A log file or a level that the user chose, and that is not in ``debug_values``, stays.
        """
        own = self.owns(path)
        value = self.original.value(*path) if own else self.document.value(*path)
        if value in debug_values:
            self.put(path, None)
        elif own:
            self.restore(path)

    def put(self, path: KeyPath, value: t.Any) -> None:
        """Write ``value`` to the setting at ``path``. None resets the setting to its default."""
        document, setting = self.document, toolkit_settings.BY_PATH.get(path)
        present = document.value(*path)
        # The comments in a table of the user could not be restored.
        if isinstance(present, dict) and not self.owns(path) and not toml_parser.equal(present, value):
            kind = "a value" if setting is None else toolkit_settings.kind_of(setting)
            problem = f"{toolkit_settings.dotted(path)} is a table, but must be {kind}"
            raise document.error(path, problem, "Remove the table.")
        self.document = self._reset(path) if value is None else document.set(path, value)
        self.wanted[path] = self.document.value(*path)

    def _reset(self, path: KeyPath) -> toml_document.TomlDocument:
        document, original, setting = self.document, self.original, toolkit_settings.BY_PATH.get(path)
        if not document.has(*path):
            return document
        default = None if setting is None else toolkit_settings.default_of(setting, self._defaults)
        if default is None or not (original.has(*path) or self._rewritten_by_packages):
            return document.delete(path).without_tables_around(path, original)
        return document.set(path, default)

    @property
    def _rewritten_by_packages(self) -> bool:
        """Whether the packages have written the file again since this collection recorded it.

        The file then has default settings that neither this collection nor the user wrote. A setting that is reset
        then gets the default that the packages write.
        """
        others = [
            s
            for s in toolkit_settings.SETTINGS
            if s.default is not None and not s.commented and s.path not in self.recorded()
        ]
        return self.record is not None and any(
            self.before.has(*s.path) and not self.original.has(*s.path) for s in others
        )

    def restore(self, path: KeyPath) -> None:
        """Restore the original setting at ``path`` unless another program has changed it since."""
        if not self.owns(path):
            return
        has_original = self.original.has(*path)
        self.document = self.document.restore(path, self.original) if has_original else self._reset(path)

    def planned_file(self) -> core_plan.PlannedFile:
        """Return the planned file. A file that this collection created is removed with its last setting."""
        created = self.content is None or (self.record is not None and self.record.created)
        after = None if created and self.emptied else self.document.to_bytes()
        keys = self._keys(toml_document.TomlDocument.from_bytes(self.path, after or b""))
        if not keys and self.record is not None and self.record.restorable(self.content):
            # All values equal the original ones, so the original bytes are restored and the record is removed.
            after = self.record.original
        return core_plan.PlannedFile(self.path, self.content, after, keys)

    def _keys(self, final: toml_document.TomlDocument) -> dict[KeyPath, t.Any]:
        """Return the entries of this collection in ``final``.

        A setting that already had the requested value before this collection wrote the file is not one of them.
        """
        recorded = (self.record.keys or {}) if self.record is not None else {}
        written = {
            path: value
            for path, value in self.wanted.items()
            if path in recorded or not toml_parser.equal(self.before.value(*path), value)
        }
        return {
            path: value
            for path, value in {**recorded, **written}.items()
            if toml_parser.equal(final.value(*path), value) and not toml_parser.equal(self.original.value(*path), value)
        }


def _position(path: KeyPath) -> tuple[int, KeyPath]:
    """Return the position of a setting in the packages' file. Unknown settings come last."""
    return next(
        (index for index, setting in enumerate(toolkit_settings.SETTINGS) if setting.path == path),
        len(toolkit_settings.SETTINGS),
    ), path


def _changed(before: toml_document.TomlDocument, after: toml_document.TomlDocument) -> tuple[str, ...]:
    old, new = dict(toml_parser.iter_leaves(before.data)), dict(toml_parser.iter_leaves(after.data))
    paths = [
        path
        for path in {**old, **new}
        if path not in old or path not in new or not toml_parser.equal(old[path], new[path])
    ]
    return tuple(map(toolkit_settings.dotted, sorted(paths, key=_position)))


class ConfigOptions(t.NamedTuple):
    """The task's parameters. ``request`` is None for state=absent."""

    request: SettingsRequest | None
    path: str = toolkit_constants.CONFIG_FILE
    backup_dir: str = core_records.BACKUP_DIR
    purge_backups: bool = False


class ConfigResult(t.NamedTuple):
    """The result of the task, or the predicted result in check mode. Secrets in ``settings`` are masked."""

    changed: bool
    files: list[core_plan.PlannedFile]
    backup_files: list[dict[str, str | None]]
    path: str
    settings: dict[str, t.Any]
    changed_keys: list[str]
    warnings: list[str]


class ConfigTask:
    """The task that changes config.toml of one host as ``options`` request."""

    def __init__(self, options: ConfigOptions, host: hostfs.HostFS) -> None:
        self.options = options
        self.host = host
        self.path = host.check_path("path", options.path)
        backup_dir = host.check_path("backup_dir", options.backup_dir)
        trusted_paths.check_backup_dir(host, backup_dir, core_constants.CONFIG_DIRS)
        self.writer = apply.ChangeWriter(
            host,
            core_records.TOOLKIT,
            host.resolve(self.path),
            backup_dir,
            removal=options.request is None,
            purge=options.purge_backups,
        )

    def execute(self, check_mode: bool) -> ConfigResult:
        """Plan the change, and write it under the host's lock unless ``check_mode``. Raises NvidiaError."""
        plan = self.plan()
        changed = self.writer.has_work([plan.file])
        backups: list[dict[str, str | None]] = []
        if changed and not check_mode:
            with lock.host_lock(self.host):
                # Another run may have written the file since, so the plan is made again under the lock.
                plan = self.plan()
                changed = self.writer.has_work([plan.file])
                if changed:
                    backups = self.writer.apply([plan.file])
        return ConfigResult(
            changed=changed,
            files=[plan.file] if plan.file.changed else [],
            backup_files=backups,
            path=self.path,
            settings=toolkit_settings.masked(plan.settings),
            changed_keys=list(plan.changed_keys),
            warnings=list(plan.warnings),
        )

    def plan(self) -> ConfigPlan:
        """Return the plan for the present file. Raises NvidiaError for wrong settings, or a file that is not TOML."""
        path, request = self.writer.main_path, self.options.request
        record = core_records.load_record(self.host, core_records.TOOLKIT, path)
        defaults, in_container = toolkit_settings.host_defaults(self.host), self.host.is_system_container()
        file = ToolkitConfigFile(path, self.host.read(path), record, defaults, in_container)
        return file.absent() if request is None else file.present(request)


PROFILES: dict[str, dict[str, t.Any]] = {
    # Pods get GPUs only from the device plugin, not from an environment variable that they set themselves.
    "kubernetes_hardened": {
        "accept-nvidia-visible-devices-as-volume-mounts": True,
        "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
    },
    # A user other than root may not change control groups.
    "rootless": {"nvidia-container-cli.no-cgroups": True},
}
# The hook has no log setting: it uses the log of nvidia-container-cli.
_LOGS = ("nvidia-container-cli.debug", "nvidia-container-runtime.debug")
_DEBUG: dict[str, t.Any] = {
    **{setting.key: setting.default for setting in toolkit_settings.SETTINGS if setting.key in _LOGS},
    toolkit_settings.LEVEL_KEY: "debug",
}
# Values that a user may have set for the same purpose.
_DEBUG_VALUES: dict[str, tuple[t.Any, ...]] = {
    **{key: (value,) for key, value in _DEBUG.items()},
    toolkit_settings.LEVEL_KEY: ("debug", "trace"),
}


class SettingsRequest(t.NamedTuple):
    """The task's parameters. ``debug`` None leaves the log settings unchanged.

    With ``exclusive``, settings that earlier runs wrote and this task does not name are restored.
    """

    settings: t.Mapping[str, t.Any]
    profile: str | None = None
    debug: bool | None = None
    exclusive: bool = False
    allow_unknown: bool = False
    create: bool = True

    def values(self) -> Values:
        """Return every requested setting by its path.

        Named settings have precedence over ``debug``, and ``debug`` over ``profile``. Raises NvidiaError for an
        unknown setting or an invalid value.
        """
        found: Values = {}
        if self.profile is not None:
            found.update(_by_path(PROFILES[self.profile]))
        if self.debug:
            found.update(_by_path(_DEBUG))
        found.update(_SettingsParser(self.allow_unknown).read(self.settings))
        return found

    def debug_settings_to_reset(self) -> dict[KeyPath, tuple[t.Any, ...]]:
        """Return the settings that ``debug: false`` resets, each with the values that enable debugging.

        Settings that the task names are not among them.
        """
        named = self.values()
        debug_values = _by_path(_DEBUG_VALUES) if self.debug is False else {}
        return {path: values for path, values in debug_values.items() if path not in named}


def _by_path(settings: t.Mapping[str, t.Any]) -> Values:
    return {tuple(key.split(".")): value for key, value in settings.items()}


class _SettingsParser:
    """A reader that flattens and checks settings: nested dictionaries, dotted keys, or a mix of both."""

    def __init__(self, allow_unknown: bool) -> None:
        self.allow_unknown = allow_unknown
        self.found: Values = {}

    def read(self, settings: t.Mapping[str, t.Any]) -> Values:
        self._table((), settings)
        self._refuse_nested()
        return self.found

    def _table(self, outer: KeyPath, table: t.Mapping[t.Any, t.Any]) -> None:
        for name, value in table.items():
            # YAML reads some names as another type, such as a boolean.
            names = tuple(name.split(".")) if isinstance(name, str) else ("",)
            path = (*outer, *names)
            if not all(part.strip() for part in path):
                raise errors.NvidiaError(
                    f"{errors.option:settings}: Invalid name {toolkit_settings.dotted((*outer, str(name)))!r}. Correct"
                    " the name."
                )
            self._entry(path, value)

    def _entry(self, path: KeyPath, value: t.Any) -> None:
        setting = toolkit_settings.BY_PATH.get(path) or self._new_feature(path)
        if setting is not None:
            if isinstance(value, dict):
                raise errors.NvidiaError(
                    f"{errors.option:settings}: {setting.key} is a dictionary, but must be"
                    f" {toolkit_settings.kind_of(setting)}. Set such a value."
                )
            self._put(path, None if value is None else toolkit_settings.check_value(setting, value))
        elif isinstance(value, dict) and (value or path in toolkit_settings.TABLES):
            self._table(path, value)
        elif path in toolkit_settings.TABLES:
            raise errors.NvidiaError(
                f"{errors.option:settings}: {toolkit_settings.dotted(path)} is a table, but its value is"
                f" {'null' if value is None else toolkit_settings.format_value(value)}. Set its settings instead."
            )
        elif self.allow_unknown and not _is_below_value(path):
            self._put(
                path,
                None if value is None else toolkit_settings.check_unknown_value(toolkit_settings.dotted(path), value),
            )
        else:
            raise _unknown(path)

    def _new_feature(self, path: KeyPath) -> toolkit_settings.Setting | None:
        """Return a boolean setting for an unknown key of ``features``, which newer toolkits may have.

        All settings in that table are booleans.
        """
        return (
            toolkit_settings.Setting(toolkit_settings.dotted(path), bool, None)
            if self.allow_unknown and _is_feature(path)
            else None
        )

    def _put(self, path: KeyPath, value: t.Any) -> None:
        if path in self.found and not toml_parser.equal(self.found[path], value):
            raise errors.NvidiaError(
                f"{errors.option:settings}: {toolkit_settings.dotted(path)} is set twice, with different values."
                " Remove one of them."
            )
        self.found[path] = value

    def _refuse_nested(self) -> None:
        for path in self.found:
            outer = next((path[:depth] for depth in range(1, len(path)) if path[:depth] in self.found), None)
            if outer is not None:
                raise errors.NvidiaError(
                    f"{errors.option:settings}: {toolkit_settings.dotted(outer)} is both a value and a table that"
                    f" contains {toolkit_settings.dotted(path)}. Remove one of them."
                )


def _is_below_value(path: KeyPath) -> bool:
    return any(path[:depth] in toolkit_settings.BY_PATH or _is_feature(path[:depth]) for depth in range(1, len(path)))


def _is_feature(path: KeyPath) -> bool:
    return path[:1] == ("features",) and len(path[1:]) == 1


def _unknown(path: KeyPath) -> errors.NvidiaError:
    key = toolkit_settings.dotted(path)
    if _is_below_value(path):
        return errors.NvidiaError(
            f"{errors.option:settings}: {key} is invalid, because a part of it is a setting and not a table. Correct"
            " the name."
        )
    similar = _similar_key(path)
    hint = f" The most similar one is {similar}." if similar else ""
    return errors.NvidiaError(
        f"{errors.option:settings}: {key} is not a known setting of the NVIDIA Container Toolkit.{hint} Correct it, or"
        f" set {errors.option:allow_unknown}: true to write it."
    )


def _similar_key(path: KeyPath) -> str | None:
    """Return the known key that the user probably meant, or None.

    This is the same name in another table, or a similar name.
    """
    last = path[-1].replace("_", "-").lower()
    same_name = [setting.key for setting in toolkit_settings.SETTINGS if setting.path[-1] == last]
    keys = same_name if len(same_name) > 0 else [setting.key for setting in toolkit_settings.SETTINGS]
    key = toolkit_settings.dotted(path).replace("_", "-").lower()
    found = difflib.get_close_matches(key, keys, 1, 0.0 if same_name else 0.6)
    if not found:
        names = {setting.path[-1]: setting.key for setting in toolkit_settings.SETTINGS}
        found = [names[name] for name in difflib.get_close_matches(last, list(names), 1, 0.75)]
    return found[0] if found else None
