# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Contents of files for EnvironmentFile=, and the variables that systemd 252 and 257 set for them.

Where the releases differ, there are two results: of systemd before COMMENTS_END_SINCE, and of later ones. The scenario
docker compares them with the systemd of its hosts.
"""

from __future__ import annotations

import typing as t

# The first release in which a backslash does not continue a comment.
COMMENTS_END_SINCE = 254
Variables = t.Dict[str, str]
FILES: list[tuple[str, Variables | tuple[Variables, Variables]]] = [
    ("A=1\n", {"A": "1"}),
    ("A=1", {"A": "1"}),
    ("A=1\nA=2\n", {"A": "2"}),
    ("  A = 1  \n", {"A": "1"}),
    ("A=\n", {"A": ""}),
    ("A=''\n", {"A": ""}),
    ("A\nB=1\n", {"B": "1"}),
    ("=x\nB=1\n", {"B": "1"}),
    ("='x\nB=1\n", {"B": "1"}),
    ("1A=2\nB=1\n", {"B": "1"}),
    ("A-B=1\nC=2\n", {"C": "2"}),
    ("export A=1\nB=2\n", {"B": "2"}),
    ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
    ("A=a=b\n", {"A": "a=b"}),
    ("A=$B ${C}\n", {"A": "$B ${C}"}),
    # Comments are lines.
    ("; x\nA=1 # y\n", {"A": "1 # y"}),
    ('A="x" # y\n', {"A": "x# y"}),
    ("# c\\\nA=1\nB=2\n", ({"B": "2"}, {"A": "1", "B": "2"})),
    ("#c\\\\\nA=1\n", {"A": "1"}),
    ("\n\n  # x \\\n y\nA=1\n", {"A": "1"}),
    # Several lines.
    ("A='1\n2'\n", {"A": "1\n2"}),
    ('A="a\nb\nc"\n', {"A": "a\nb\nc"}),
    ('A="a \\\n b"\n', {"A": "a  b"}),
    ("A='a \\\n b'\n", {"A": "a \\\n b"}),
    ("A=a\\\nb\n", {"A": "ab"}),
    ("A=a  \\\n  b  \n", {"A": "a    b"}),
    ("A= \\\n b\n", {"A": " b"}),
    ("A='a'\\\nb\n", {"A": "ab"}),
    # Quotation marks.
    ('A="a b" c\n', {"A": "a bc"}),
    ("A='a' 'b'\n", {"A": "ab"}),
    ("A=\"a\"'b'x 'y'\n", {"A": "abx 'y'"}),
    ('A=a"b"c\n', {"A": 'a"b"c'}),
    ("A=it's\n", {"A": "it's"}),
    ("A='1", {"A": "1"}),
    # Backslashes.
    ('A="\\$x \\` \\" \\\\ \\n \\x"\n', {"A": '$x ` " \\ \\n \\x'}),
    ("A=\\'x\\'\n", {"A": "'x'"}),
    ("A=a\\nb\n", {"A": "anb"}),
    ("A=a\\ \nB=1\n", {"A": "a ", "B": "1"}),
    ("A=1\\", {"A": "1"}),
    ('A="1\\', {"A": "1"}),
]
