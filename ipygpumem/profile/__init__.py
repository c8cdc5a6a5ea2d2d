"""Understanding a profile of torch.profiler: its tensors, what each is for, and the memory of each kind over time.

Free of torch: `ipygpumem.recording.tree` reads what a profiler left.
"""

from ipygpumem.profile.categories import CATEGORIES, classify
from ipygpumem.profile.flow import Flow, Level, Nameless, Node
from ipygpumem.profile.timeline import CategoryTimeline, Profile, profile_of

__all__ = [
    "CATEGORIES",
    "CategoryTimeline",
    "Flow",
    "Level",
    "Nameless",
    "Node",
    "Profile",
    "classify",
    "profile_of",
]
