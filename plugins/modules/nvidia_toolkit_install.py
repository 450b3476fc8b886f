# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit_install
short_description: Install the NVIDIA Container Toolkit at one version, or remove it
version_added: 1.0.0
author:
  - gpufleet.nvidia maintainers (@gpufleet)
description:
  - Installs C(nvidia-container-toolkit), C(nvidia-container-toolkit-base), C(libnvidia-container-tools), and
    C(libnvidia-container1), all at the same version, or only the second one (see O(packages)), or removes them.
  - With O(source=directory) it installs the toolkit's files into a directory instead, for hosts whose packages must not
    change.
  - All packages are installed, upgraded, downgraded, or removed in one transaction. Only C(dnf) needs a second one if
    it has to remove packages after an installation. The module first asks the package manager what the transaction
    would do. If it would remove or downgrade any other package, the task fails and nothing is changed.
  - If a host already has the requested state, the module only reads. It takes no lock and needs no network, except with
    O(version=latest).
  - Afterwards the packages and programs must have the same version. Otherwise the task fails and names the differences.
  - Works with C(apt) on Debian, Ubuntu and their derivatives, with C(dnf) 4 on RHEL and its derivatives, and with
    C(zypper) on openSUSE and SLES. Hosts with C(dnf) 5, of C(transactional-update), and of C(ostree) with C(dnf), are
    refused.
  - The module can also write the files of the package repository, see O(repository_files). A run that fails before a
    package has changed restores them.
  - The module can also write the toolkit's C(config.toml), see O(settings).
  - No engine is configured or restarted.
  - After an interrupted run, the next run configures those packages of the toolkit that are half installed, and no
    other packages. If C(dpkg) was interrupted and packages of others are pending, the task fails, in check mode too,
    and names them. Run C(dpkg --configure -a) on the host and fix the package that it reports.
  - In a directory, versions are installed side by side in C(DEST.versions), and O(dest) is a link to the current one. A
    new version is installed and tested before the link changes. A container start always finds a complete version, the
    previous or the new one. The previous version is kept until the next change, and longer while a process, a
    container, or a CDI specification uses it. Changed or missing files are repaired in the same way, with a new
    version.
  - In a directory, programs that need it have a shell script in front, which sets the paths of their version. The
    scripts of the runtimes run the low-level runtime while the driver is not loaded, so that containers without GPUs
    still start.
extends_documentation_fragment:
  - gpufleet.nvidia.attributes
  - gpufleet.nvidia.host_root
  - gpufleet.nvidia.toolkit_directory
  - gpufleet.nvidia.bundled
attributes:
  check_mode:
    details: Package lists are not fetched. A version that is not in the present lists is reported as requested.
  idempotent:
    details: With O(version=latest) as long as no newer version is published.
  safe_file_operations:
    details: The package manager writes the files of packages in its own way.
options:
  state:
    description:
      - V(present) installs the toolkit, or changes it to the requested version.
      - V(absent) removes the packages and their configuration files. It also removes, after a backup,
        C(/etc/nvidia-container-runtime/config.toml) if an installation by this module created it. What was removed
        because of O(remove_conflicts) is not restored.
      - With O(source=directory), V(absent) removes O(dest) and all its versions, and restores what was at O(dest)
        before. Files in them that were not installed stay. It fails while engines are configured with runtimes in
        O(dest) or containers run with them, see O(running_gpu_containers).
      - With any other O(source), V(absent) also restores what O(repository_files) changed, and removes keys in
        C(/var/cache) that were fetched for it.
    type: str
    choices: [present, absent]
    default: present
  source:
    description:
      - The source of the toolkit.
      - V(repository) installs the packages from the source in O(repository_files), or from the one that an earlier run
        has written. The toolkit's packages then come from no other source of the host, but what they depend on may.
        Without such a source, all package sources of the host are used.
      - V(files) installs the packages in O(files), downloads nothing, and needs no package source.
      - V(existing) changes no package. The installed toolkit, from any source, must be complete, have one version, and
        satisfy O(version) and O(minimum_version).
      - V(directory) takes the toolkit's files from O(src) or from the packages in O(files), and installs them into
        O(dest). It does not use the package manager.
      - Offline trees, and distributions without C(apt), C(dnf) and C(zypper), support only V(existing) and
        V(directory).
    type: str
    choices: [repository, files, existing, directory]
    default: repository
  packages:
    description:
      - The packages of the toolkit to install.
      - V(full) are all four. V(base) is C(nvidia-container-toolkit-base), which is enough for hosts whose containers
        get GPUs only by CDI. It contains the runtime, C(nvidia-ctk), C(nvidia-cdi-hook), and the units that refresh the
        CDI specification. It contains neither C(nvidia-container-runtime-hook) nor C(nvidia-container-cli), which mode
        C(legacy) of the runtime needs, and mode C(auto) before version 1.18. C(docker run --gpus) needs
        C(nvidia-container-runtime-hook) too, unless CDI is on in Docker 29.2 or newer.
      - With V(base), those of the other three packages that are installed stay, and get the version of the base
        package. Programs that run C(nvidia-container-cli), such as enroot of Slurm, may need them.
      - With O(source=files), O(files) must have exactly these packages. With O(source=existing), the installed toolkit
        must have them, and may have more. O(source=directory) does not support V(base), see O(components).
    type: str
    choices: [full, base]
    default: full
    version_added: 1.2.0
  version:
    description:
      - The version, such as V(1.19.1), of which the newest revision is installed, or with a revision, such as
        V(1.19.1-1).
      - V(latest) is the version that the package manager prefers. Package lists are then fetched in each run. A newer
        version that came from elsewhere stays, with a warning.
      - When left out, any installed version that is the same for all requested packages is accepted. If there is none,
        the version that the package manager prefers is installed.
      - With O(source=directory) it is the version that the source must have, and V(latest) is of no use.
    type: str
  files:
    description:
      - Paths, on the host, of the files of all requested packages, see O(packages). Required with O(source=files) and
        O(state=present).
      - With O(source=directory), packages that are unpacked with C(dpkg-deb) or C(rpm2archive), and not installed. They
        may be on the controller, see O(remote_src). Their signatures are not checked. A package that expands to more
        than 256 MiB, or to more than 100 times its size (at least 16 MiB), is refused.
    type: list
    elements: path
    default: []
  pending:
    description:
      - Whether the package source or the files were just changed, or would be in check mode. With V(true) the package
        list of the source is always fetched, and check mode does not ask the package manager.
    type: bool
    default: false
  repository_files:
    description:
      - All files that configure the repository for C(apt), C(dnf) or C(zypper). A file that is missing or different is
        written, after a backup. A file that an earlier run wrote and that is no longer listed is restored to its
        previous content, or removed if there was none.
      - The package list is then fetched. If that or a later step fails before a package has changed, all files are
        restored, and fetched keys are removed so that the next run fetches them again. A run after an interrupted one
        does the same.
      - When left out, such files are not changed. A list that is not empty needs O(source=repository).
    type: list
    elements: dict
    suboptions:
      path:
        description:
          - The path of the file. Only names of this collection are allowed.
          - For C(apt) these are C(/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources),
            C(/etc/apt/preferences.d/gpufleet-nvidia-container-toolkit),
            C(/etc/apt/apt.conf.d/95gpufleet-nvidia-container-toolkit), and a key,
            C(/usr/share/keyrings/gpufleet-nvidia-container-toolkit-<16 digits>.asc).
          - For C(dnf) these are C(/etc/yum.repos.d/gpufleet-nvidia-container-toolkit.repo), and a key,
            C(/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-<16 digits>).
          - For C(zypper) these are C(/etc/zypp/repos.d/gpufleet-nvidia-container-toolkit.repo), and a key,
            C(/etc/zypp/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-<16 digits>).
          - The digits are the last ones of the key's fingerprint.
        type: path
        required: true
      content:
        description: The content of the file. C(@PROXY@) in it is replaced by O(proxy).
        type: str
      src:
        description:
          - The path, on the host, of a file to copy instead of O(repository_files[].content). In check mode it need not
            exist.
          - A key in C(/var/cache/gpufleet-nvidia-key-<16 digits>.asc) is treated as fetched for this run.
        type: path
      mode:
        description: The file mode, as a quoted string.
        type: str
        default: "0644"
  key_fingerprint:
    description:
      - The fingerprint of the key in O(repository_files), 40 hexadecimal digits with or without spaces.
      - It is used with C(dnf) and C(zypper), which trust every key in the file. C(apt) reads the fingerprint in
        C(Signed-By).
      - The task fails unless the file is one armored block that contains this key and no other one. This needs the
        program C(gpg). A wrong key in C(/var/cache) is removed, so that it can be fetched again.
      - The key is also imported into C(rpm) before the package list is fetched. It replaces the same key with another
        expiry date, which C(rpm) would keep.
      - When left out, the key is not checked. C(dnf) imports it when it installs a package. For C(zypper), it must be
        in C(rpm) already.
      - In both cases the key of an earlier run is removed from C(rpm) together with its file.
    type: str
  proxy:
    description:
      - The address of a proxy for O(repository_files[].content). It may contain a password. When left out, none.
    type: str
  hold:
    description:
      - V(true) holds the packages at their version, so that upgrades of the host do not change them. It uses
        C(apt-mark), C(dnf versionlock), for which C(dnf) 4 needs C(python3-dnf-plugin-versionlock), or
        C(zypper addlock). V(false) releases them.
      - When left out, holds are not changed, and a held package that would have to change is an error.
      - O(state=absent) releases the held packages that it removes. Other holds stay, and so do locks of C(dnf) and
        C(zypper) for packages that are not installed any more.
    type: bool
  remove_conflicts:
    description:
      - Whether to remove packages that the toolkit replaces, which are C(nvidia-docker2), C(nvidia-docker),
        C(nvidia-container-runtime), and C(nvidia-container-runtime-hook). Their configuration files stay.
      - With O(source=repository) the source files of NVIDIA's previous installation instructions are removed too, after
        a backup, because C(apt) refuses to work beside them. They are restored if the task fails before a package has
        changed.
    type: bool
    default: true
  config_restored:
    description:
      - With O(state=absent) in check mode, whether an earlier task of the play removes the settings of
        M(gpufleet.nvidia.nvidia_toolkit_config) from C(config.toml). Then the module predicts that it removes the file.
    type: bool
    default: false
    version_added: 1.2.0
  running_gpu_containers:
    description:
      - What to do if packages have to change while containers run that got their GPU from NVIDIA's legacy hook. They
        lose it when package scripts make systemd reload its units, and must then be created again.
      - With O(state=absent) it also applies to containers that run with a runtime of the toolkit. Without that program
        no engine can stop them.
      - A new version in a directory does not affect containers.
      - V(fail) fails and changes nothing. V(warn) continues with a warning, and V(ignore) without one.
    type: str
    choices: [fail, warn, ignore]
    default: fail
  minimum_version:
    description:
      - The oldest version that O(minimum_version_policy) accepts.
      - When left out, the oldest version without a vulnerability that this collection knows.
    type: str
  minimum_version_policy:
    description:
      - What to do about an older version, V(fail), V(warn), or V(ignore). The message names its vulnerabilities.
      - With V(fail), a version that is too old is not installed.
    type: str
    choices: [fail, warn, ignore]
    default: warn
  lock_timeout:
    description: Seconds to wait while another program uses the package manager.
    type: int
    default: 120
  backup_dir:
    description: Directory for copies of files from before they are changed or removed.
    type: path
    default: /var/lib/gpufleet-nvidia/backups
  package_cache:
    description:
      - Directory to which the controller copied the package files. When the task succeeds, files that are not among
        O(files) are removed from it, and with O(state=absent) all of them.
      - It must be V(/var/cache/gpufleet-nvidia/packages) or be in a directory with the name C(gpufleet-nvidia).
      - When left out, no such files are removed.
    type: path
notes:
  - The host is never rebooted, see RV(reboot_required).
  - C(needrestart) does not restart engines either, because the module sets it to list services only.
seealso:
  - module: gpufleet.nvidia.nvidia_container_info
  - module: gpufleet.nvidia.nvidia_toolkit_config
  - module: gpufleet.nvidia.nvidia_runtime_config
"""

EXAMPLES = r"""
- name: Install the toolkit at a version and keep it there
  gpufleet.nvidia.nvidia_toolkit_install:
    version: 1.19.1
    hold: true

- name: Install the toolkit from a mirror
  gpufleet.nvidia.nvidia_toolkit_install:
    version: 1.19.1
    repository_files:
      - path: /usr/share/keyrings/gpufleet-nvidia-container-toolkit-ddcae044f796ecb0.asc
        src: /srv/keys/nvidia.asc
      - path: /etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources
        content: |
          Types: deb
          URIs: https://mirror.example.com/libnvidia-container/stable/deb/amd64
          Suites: /
          Signed-By: /usr/share/keyrings/gpufleet-nvidia-container-toolkit-ddcae044f796ecb0.asc

- name: Install the toolkit with dnf from a mirror, with one trusted key
  gpufleet.nvidia.nvidia_toolkit_install:
    key_fingerprint: C95B321B61E88C1809C4F759DDCAE044F796ECB0
    repository_files:
      - path: /etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-ddcae044f796ecb0
        src: /srv/keys/nvidia.asc
      - path: /etc/yum.repos.d/gpufleet-nvidia-container-toolkit.repo
        content: |
          [gpufleet-nvidia-container-toolkit]
          name=NVIDIA Container Toolkit
          baseurl=https://mirror.example.com/libnvidia-container/stable/rpm/$basearch
          gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-gpufleet-nvidia-container-toolkit-ddcae044f796ecb0
          gpgcheck=1

- name: Install packages that are on the host
  gpufleet.nvidia.nvidia_toolkit_install:
    source: files
    files:
      - /srv/packages/libnvidia-container1_1.19.1-1_amd64.deb
      - /srv/packages/libnvidia-container-tools_1.19.1-1_amd64.deb
      - /srv/packages/nvidia-container-toolkit-base_1.19.1-1_amd64.deb
      - /srv/packages/nvidia-container-toolkit_1.19.1-1_amd64.deb

- name: Install only the package for hosts that use CDI alone
  gpufleet.nvidia.nvidia_toolkit_install:
    packages: base

- name: Install the toolkit and configure it in the same task
  gpufleet.nvidia.nvidia_toolkit_install:
    version: 1.19.1
    settings:
      nvidia-container-runtime.mode: cdi

- name: Fail if the installed toolkit has a known vulnerability
  gpufleet.nvidia.nvidia_toolkit_install:
    source: existing
    minimum_version_policy: fail

- name: Remove the toolkit
  gpufleet.nvidia.nvidia_toolkit_install:
    state: absent

- name: Install the toolkit into a directory, from packages on the controller
  gpufleet.nvidia.nvidia_toolkit_install:
    source: directory
    remote_src: false
    files:
      - libnvidia-container1_1.19.1-1_amd64.deb
      - libnvidia-container-tools_1.19.1-1_amd64.deb
      - nvidia-container-toolkit-base_1.19.1-1_amd64.deb
      - nvidia-container-toolkit_1.19.1-1_amd64.deb

- name: Install the toolkit into an image, for a driver that runs in a container
  gpufleet.nvidia.nvidia_toolkit_install:
    source: directory
    src: /srv/nvidia-container-toolkit-1.19.1
    remote_src: false
    host_root: /srv/images/gpu-node
    dest: /opt/nvidia/toolkit
    driver_root: /run/nvidia/driver
    settings:
      nvidia-container-runtime.mode: cdi

- name: Install only the components for CDI into a directory, and verify all checksums
  gpufleet.nvidia.nvidia_toolkit_install:
    source: directory
    src: /srv/nvidia-container-toolkit-1.19.1
    components: [runtime, ctk, cdi_hook]
    checksum: full

- name: Remove the toolkit from its directory
  gpufleet.nvidia.nvidia_toolkit_install:
    source: directory
    state: absent
"""

RETURN = r"""
diff:
  description:
    - Packages, and removed files, before and after. In check mode what they would be.
    - It is followed by one entry for each changed file of the repository, without user and password in addresses, and
      by one for the keys that are removed from C(rpm) and the key files that are imported.
    - With O(source=directory) the names in O(dest), with modes and the beginning of the SHA-256 of their content.
    - C(config.toml) comes last, with secrets masked.
  returned: success
  type: list
  elements: dict
  sample:
    - before_header: packages
      after_header: packages
      before: |
        libnvidia-container-tools 1.18.2-1
        libnvidia-container1 1.18.2-1
        nvidia-container-toolkit 1.18.2-1
        nvidia-container-toolkit-base 1.18.2-1
      after: |
        libnvidia-container-tools 1.19.1-1 (held)
        libnvidia-container1 1.19.1-1 (held)
        nvidia-container-toolkit 1.19.1-1 (held)
        nvidia-container-toolkit-base 1.19.1-1 (held)
version:
  description: The version of the toolkit, null if there is none or more than one.
  returned: success
  type: str
  sample: 1.19.1
packages:
  description:
    - The installed packages of the toolkit, and those that it replaces. In check mode what they would be.
    - Each name has the full version of the package as C(version), and as C(held) whether upgrades of the host leave the
      package at its version.
  returned: success
  type: dict
  sample:
    nvidia-container-toolkit:
      version: 1.19.1-1
      held: true
programs:
  description:
    - The toolkit's programs on the host, by name.
    - Each name has the path of the program as C(path), and as C(version) what the program reports, null if it is
      unknown.
  returned: success
  type: dict
  sample:
    nvidia-ctk:
      path: /usr/bin/nvidia-ctk
      version: 1.19.1
origin:
  description:
    - The origin of the packages that this run installed, as the package manager reports it, or V(files) for O(files).
    - Null if none was installed, and with O(source=directory).
  returned: success
  type: str
  sample: https://nvidia.github.io/libnvidia-container/stable/deb/amd64
predicted:
  description:
    - What a real run would install, for the option O(gpufleet.nvidia.nvidia_cdi_spec#module:predicted_toolkit) of later
      tasks.
    - Null outside check mode, with O(state=absent), and if no other version would be installed.
  returned: success
  type: dict
  contains:
    version:
      description: The version, null if it is known only after the installation.
      type: str
      sample: 1.20.0
    programs:
      description: The paths of the programs.
      type: list
      elements: str
      sample: [/usr/bin/nvidia-ctk]
  sample:
    version: 1.20.0
    programs: [/usr/bin/nvidia-container-runtime, /usr/bin/nvidia-ctk]
  version_added: 1.2.0
known_cves:
  description: Known vulnerabilities of the version, null if the version is not known.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The identifier of the vulnerability.
      type: str
      sample: CVE-2026-24260
    floor:
      description: The first version without the vulnerability.
      type: str
      sample: 1.19.1
    about:
      description: What the vulnerability is about.
      type: str
      sample: race between check and use
  sample: []
gpu_containers:
  description:
    - Running containers that got their GPU from the legacy hook. They are only searched for if packages have to change.
  returned: success
  type: list
  elements: str
  sample: [docker/4f2a90c1b7de]
reboot_required:
  description: Whether the host reports that it needs a reboot, null if it cannot report that.
  returned: success
  type: bool
  sample: false
code:
  description:
    - V(repository-unreachable) if the host cannot connect to the repository or the proxy. The message names the host,
      the proxy, and the settings for hosts without access.
  returned: failure, for this reason
  type: str
  sample: repository-unreachable
removed_sources:
  description: Package source files that were removed because they conflict.
  returned: success
  type: list
  elements: str
  sample: [/etc/apt/sources.list.d/nvidia-docker.list]
written_files:
  description: The files of the repository that were written, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [/etc/apt/sources.list.d/gpufleet-nvidia-container-toolkit.sources]
restored_files:
  description:
    - The files of the repository from an earlier run that were restored to their previous content, or removed if there
      was none.
  returned: success
  type: list
  elements: str
  sample: []
unrecorded:
  description:
    - With O(state=absent), the packages that stay because no run installed them. A run records the packages that it
      installs, not those that it upgrades.
  returned: without O(source=directory)
  type: list
  elements: str
  sample: []
backup_files:
  description: Files that were written or removed, and the copies of their previous content.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The file.
      type: str
      sample: /etc/apt/sources.list.d/nvidia-docker.list
    backup:
      description: The copy, null if there was no file.
      type: str
      sample: >-
        /var/lib/gpufleet-nvidia/backups/etc~apt~sources.list.d~nvidia-docker.list~20260821T143000.123456Z.SHA-256.backup
    checksum:
      description: SHA-256 of the new content, V(absent) if the file was removed.
      type: str
      sample: absent
  sample: []
installed_path:
  description: The target of the link O(dest), null if nothing is installed.
  returned: with O(source=directory)
  type: str
  sample: /usr/local/nvidia/toolkit.versions/1.19.1-0f8fad5bd9cb
previous_path:
  description: The version before the last change that still exists, null if there is none.
  returned: with O(source=directory)
  type: str
  sample: /usr/local/nvidia/toolkit.versions/1.18.2-7c9e6679f425
kept_paths:
  description: Older versions that are kept because something uses them, each with its users.
  returned: with O(source=directory)
  type: dict
  sample:
    /usr/local/nvidia/toolkit.versions/1.17.9-e02fa0e4ad70: [container docker/4f2a90c1b7de]
removed_paths:
  description: Older versions, and leftovers of interrupted runs, that were removed.
  returned: with O(source=directory)
  type: list
  elements: str
  sample: [/usr/local/nvidia/toolkit.versions/1.17.8-16fd2706e8ba]
repaired_files:
  description: Names in O(dest) that were missing, different from the installed ones, or not installed.
  returned: with O(source=directory)
  type: list
  elements: str
  sample: [nvidia-ctk.real]
device_nodes:
  description: Device nodes that were created.
  returned: with O(source=directory)
  type: list
  elements: str
  sample: [/dev/nvidiactl]
settings:
  description: The settings in effect, as in RV(gpufleet.nvidia.nvidia_toolkit_config#module:settings).
  returned: with O(source=directory), O(settings), O(profile), or O(debug)
  type: dict
  sample:
    nvidia-container-cli.root: /
    nvidia-container-runtime.runtimes: [/usr/bin/runc, runc, crun]
"""

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _module
from ansible_collections.gpufleet.nvidia.plugins.module_utils._tasks import toolkit_install


def main() -> None:
    module = _module.new_module(toolkit_install.SPEC)
    _module.run_module(module, lambda: toolkit_install.install(module))


if __name__ == "__main__":
    main()
