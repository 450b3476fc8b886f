# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpufleet.nvidia.plugins.module_utils import _toolkit_observations
from ansible_collections.gpufleet.nvidia.plugins.module_utils._errors import HostError
from ansible_collections.gpufleet.nvidia.plugins.module_utils._host_root import HostRoot
from ansible_collections.gpufleet.nvidia.plugins.module_utils._toolkit_observations import Observations, still_hold

if t.TYPE_CHECKING:
    from pathlib import Path

    Question = t.Callable[[HostRoot], t.Any]
    Change = t.Callable[[Path], t.Any]

# What of HostRoot asks no disk, or asks it by the other methods.
MADE_OF_OTHERS = {
    "of", "follow", "check_path", "outer", "readable_entries", "glob", "find_executable", "same_program", "argv",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "folder/inner").mkdir(parents=True)
    (root / "usr/bin").mkdir(parents=True)
    (root / "file").write_text("secret")
    (root / "link").symlink_to("/file")
    (root / "loop").symlink_to("loop")
    (root / "usr/bin/program").write_text("")
    (root / "usr/bin/program").chmod(0o755)
    return root


def relink(root: Path) -> None:
    (root / "other").write_text("secret")
    (root / "link").unlink()
    (root / "link").symlink_to("other")


def replace_folder(root: Path) -> None:
    (root / "folder").rename(root / "x")
    (root / "folder").symlink_to("x")


QUESTIONS: list[tuple[Question, Change]] = [
    (lambda host: host.resolve("/link"), relink),
    (lambda host: host.outer("/link"), relink),
    (lambda host: host.resolve("/folder/link", last=False), replace_folder),
    (lambda host: host.read("/link"), lambda root: (root / "file").write_text("Secret")),
    (lambda host: host.read("/missing"), lambda root: (root / "missing").write_text("")),
    (lambda host: host.read_text("/link"), lambda root: (root / "file").write_text("Secret")),
    (lambda host: host.exists("/link"), lambda root: (root / "file").unlink()),
    (lambda host: host.is_there("/link"), lambda root: (root / "link").unlink()),
    (lambda host: host.is_executable("/link"), lambda root: (root / "file").chmod(0o755)),
    (lambda host: host.entries("/folder"), lambda root: (root / "folder/x").write_text("")),
    (lambda host: host.walk("/"), lambda root: (root / "folder/inner/x").write_text("")),
    (lambda host: host.modified("/missing"), lambda root: (root / "missing").write_text("")),
    (lambda host: host.glob("/f*/*"), lambda root: (root / "folder/x").write_text("")),
    (lambda host: host.find_executable(["program"]), lambda root: (root / "usr/bin/program").chmod(0o644)),
    (lambda host: host.same_program("/link", "/file"), relink),
]


def notes_of(root: Path, *questions: Question) -> Observations:
    """What was answered to ``questions``, which is what everybody is answered."""
    observations, plain = Observations(), HostRoot(str(root), live=False)
    for question in questions:
        observed = observations.of(HostRoot(str(root), live=True))
        assert (observed, question(observed)) == (plain, question(plain))
    return observations


def test_every_question_of_a_host_is_noted() -> None:
    asked = {name for name in vars(HostRoot) if not name.startswith("_") and callable(getattr(HostRoot, name))}
    assert asked - MADE_OF_OTHERS - set(vars(_toolkit_observations._Observed)) == set()


@pytest.mark.parametrize(("question", "change"), QUESTIONS)
def test_an_answer_holds_until_it_is_another(question: Question, change: Change, root: Path) -> None:
    observations = notes_of(root, question)
    noted = json.loads(json.dumps(observations.answers))
    assert noted
    assert still_hold(noted)
    (root / "unrelated").write_text("")
    (root / "unrelated").unlink()
    assert still_hold(noted)
    change(root)
    assert not still_hold(noted)


def test_an_error_is_an_answer_too(root: Path) -> None:
    observations = Observations()
    with pytest.raises(HostError, match="not a regular file"):
        observations.of(HostRoot(str(root))).read("/folder")
    with pytest.raises(HostError, match="too many symbolic links"):
        observations.of(HostRoot(str(root))).resolve("/loop")
    assert still_hold(observations.answers)
    (root / "loop").unlink()
    assert not still_hold(observations.answers)


def test_answers_of_several_hosts(root: Path) -> None:
    observations = notes_of(root, lambda host: host.exists("/inner"))
    observations.of(HostRoot(str(root / "folder"))).exists("/inner")
    assert still_hold(observations.answers)
    (root / "folder/inner").rmdir()
    assert not still_hold(observations.answers)


def test_no_content_is_kept(root: Path) -> None:
    assert "secret" not in json.dumps(notes_of(root, lambda host: host.read("/file")).answers)


def test_two_answers_to_one_question(root: Path) -> None:
    observations = notes_of(root, *(question for question, _change in QUESTIONS), QUESTIONS[3][0])
    assert observations.consistent
    (root / "file").write_text("other")
    observations.of(HostRoot(str(root))).read("/link")
    assert not observations.consistent


def test_answers_to_what_nobody_can_ask(root: Path) -> None:
    with pytest.raises(KeyError):
        still_hold({str(root): {"argv": {"/": []}}})
