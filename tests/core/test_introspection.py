"""Tests of the choice and format of the stack frame that a table shows."""

from __future__ import annotations

from ipygpumem.core.introspection import frame_label, user_frame


def test_innermost_frame_of_user_code():
    frames = [("/x/site-packages/torch/nn/linear.py", 9, "forward"), ("/home/me/train.py", 12, "step")]
    assert user_frame(frames) == frames[1]
    assert user_frame(frames[:1]) == frames[0]
    assert user_frame(()) is None


def test_frame_label():
    assert frame_label("/home/me/train.py", 12, "step") == "train.py:12 step"
    assert frame_label("train.py", 12, "") == "train.py:12"
