"""The passes of memopt, one file each, and the named strategies that are made of them.

A pass imports memopt's doors and no other pass. memopt finds what is here by entry point, see pyproject.toml.
"""

from memopt.pipeline import Pass
from passes.fold_pad import FoldPad
from passes.fuse_conv_add import FuseConvAdd
from passes.fuse_elementwise import FuseElementwise
from passes.fuse_norm_conv import FuseNormConv
from passes.inplace_rename import InplaceRename
from passes.inplace_share import InplaceShare
from passes.lowest_peak import LowestPeak
from passes.reuse_rename import ReuseRename
from passes.reuse_share import ReuseShare
from passes.share_concat import ShareConcat
from passes.share_views import ShareViews

__all__ = [
    "BEST",
    "FUSE",
    "NONE",
    "RENAME",
    "SHARE",
    "STRATEGIES",
    "FoldPad",
    "FuseConvAdd",
    "FuseElementwise",
    "FuseNormConv",
    "InplaceRename",
    "InplaceShare",
    "LowestPeak",
    "ReuseRename",
    "ReuseShare",
    "ShareConcat",
    "ShareViews",
]

#: No pass: each value has its own variable and buffer; freeing and packing still act.
NONE: tuple[Pass, ...] = ()
#: The style of Fluid 1.5: values get the same variable.
RENAME: tuple[Pass, ...] = (InplaceRename(), ReuseRename())
#: The style of Fluid 1.6: variables stay apart, their bytes are shared.
SHARE: tuple[Pass, ...] = (InplaceShare(), ReuseShare())

_REWRITING: tuple[Pass, ...] = (FoldPad(), FuseConvAdd(), FuseNormConv(), FuseElementwise())
_IN_PLACE_FIRST: tuple[Pass, ...] = (InplaceShare(), ShareConcat(), InplaceShare())
_VIEWS_FIRST: tuple[Pass, ...] = (ShareViews(), *_IN_PLACE_FIRST)
_CONCAT_FIRST: tuple[Pass, ...] = (ShareViews(), ShareConcat(), InplaceShare())

#: Sharing to the limit: any input in place, views in strides, Concat by view, and then what in place the joined parts
#: can be together. Reuse across ops adds nothing to what packing does.
BEST: tuple[Pass, ...] = (LowestPeak((_IN_PLACE_FIRST, _CONCAT_FIRST, _VIEWS_FIRST)),)
#: The graph itself, rewritten so that there is less to hold; then as `best`.
FUSE: tuple[Pass, ...] = (
    LowestPeak(
        (
            _IN_PLACE_FIRST,
            _CONCAT_FIRST,
            _VIEWS_FIRST,
            *((*_REWRITING, *chain) for chain in (_IN_PLACE_FIRST, _CONCAT_FIRST, _VIEWS_FIRST)),
        )
    ),
)

STRATEGIES: dict[str, tuple[Pass, ...]] = {
    "none": NONE,
    "rename": RENAME,
    "share": SHARE,
    "best": BEST,
    "fuse": FUSE,
}
