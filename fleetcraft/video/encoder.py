"""The encoder: what a caller chooses, what really ran, and the file that keeps it.

Encoding itself is in `writer`. Invariant: two records are equal exactly when the same encoder,
version and settings made both files, so a record holds neither time nor path.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fleetcraft.errors import DataError, UsageError
from fleetcraft.video.metadata import ContentLight, MasteringDisplay

PIX_FMTS = {
    "libx264": ("yuv420p", "yuv444p"),
    "libx265": ("yuv420p10le", "yuv444p10le"),
}
"""What each encoder is given: x264 8-bit BT.709, x265 10-bit HDR10."""
# Source: x264's x264_preset_names, and the same in x265.
PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
)
MAX_THREADS = 16
_SCHEMA = "fleetcraft.encoder/1"


class EncoderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to encode with. The default gives the same bytes for the same frames.

    Constant QP is the default because x264 under CRF gave several bitstreams from identical
    frames, and one under constant QP or without macroblock tree (seen with PyAV 18.1). With `crf`,
    macroblock tree is therefore switched off unless `x264_params` asks for it. Whether settings do
    repeat on a machine is for `repeatability` to find out.

    Attributes:
        codec: libx264 for 8-bit files, libx265 for HDR10.
        pix_fmt: yuv420p (even sizes, plays everywhere) or yuv444p (any size, full chroma);
            with libx265 yuv420p10le or yuv444p10le.
        qp: Constant quantizer, 0 to 51; lower is better. None when `crf` is used.
        crf: Constant rate factor, 0 to 51. None when `qp` is used.
        preset: The encoder's effort, ultrafast to veryslow.
        threads: Encoder threads, 1 to 16. More than one may change the bytes.
        x264_params: More options in x264's own form, "key=value:key=value".
        x265_params: The same for x265.
    """

    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    qp: int | None = 12
    crf: float | None = None
    preset: str = "medium"
    threads: int = 1
    x264_params: str = ""
    x265_params: str = ""

    def __post_init__(self) -> None:
        _require(self.codec in PIX_FMTS, "codec", self.codec, " or ".join(PIX_FMTS))
        pix_fmts = PIX_FMTS[self.codec]
        expected = f"{' or '.join(pix_fmts)} with {self.codec}"
        _require(self.pix_fmt in pix_fmts, "pix_fmt", self.pix_fmt, expected)
        _require(self.preset in PRESETS, "preset", self.preset, f"one of {', '.join(PRESETS)}")
        _require(1 <= self.threads <= MAX_THREADS, "threads", self.threads, f"1 to {MAX_THREADS}")
        _require(self.qp is None or 0 <= self.qp <= 51, "qp", self.qp, "0 to 51")
        _require(self.crf is None or 0 <= self.crf <= 51, "crf", self.crf, "0 to 51")
        for field, codec in (("x264_params", "libx264"), ("x265_params", "libx265")):
            found = getattr(self, field)
            _require(self.codec == codec or not found, field, found, f"none with {self.codec}")
        if (self.qp is None) == (self.crf is None):
            raise UsageError(
                f"encoder settings need either qp or crf, found qp={self.qp} and crf={self.crf}",
                hint="EncoderSettings(qp=None, crf=18) for a rate factor",
            )

    @property
    def bits(self) -> int:
        """Bits a channel of what it writes."""
        return 8 if self.codec == "libx264" else 10

    @property
    def options(self) -> dict[str, str]:
        """The options as libavcodec takes them."""
        options = {"preset": self.preset}
        if self.qp is not None:
            options["qp"] = str(self.qp)
        else:
            options["crf"] = f"{self.crf:g}"
        if self.codec == "libx265":
            options["x265-params"] = self._all_x265_params()
        elif params := self._all_x264_params():
            options["x264-params"] = params
        return options

    def _all_x264_params(self) -> str:
        own = [] if self.crf is None else ["mbtree=0"]
        return ":".join([*own, self.x264_params] if self.x264_params else own)

    def _all_x265_params(self) -> str:
        own = (
            "log-level=none",
            # x265 would size its pools, rows and lookahead by the machine, and so the bitstream.
            f"pools={self.threads}",
            "frame-threads=1",
            f"wpp={int(self.threads > 1)}",
            "lookahead-slices=0",
            # Otherwise by the frame rate.
            "keyint=250",
            "min-keyint=25",
        )
        return ":".join([*own, self.x265_params] if self.x265_params else own)


class EncoderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a file was really encoded with; written beside it as ``NAME.encoder.json``.

    Attributes:
        settings: What was asked for.
        encoder_version: The encoder's own words in the bitstream; None if it left none.
        encoder_options: Every option as the encoder itself reports it; None if it did not.
        libavcodec: Version of FFmpeg's codec library.
        libswscale: Version of FFmpeg's colour converter.
        pyav: Version of the Python binding.
        converter: The converter's flags.
        matrix: Colour matrix, converted to and tagged.
        primaries: Colour primaries, tagged.
        transfer: Transfer function, tagged.
        color_range: limited (16 to 235, or 64 to 940 in 10 bits) or full.
        mastering_display: Static metadata of an HDR10 file; None if it has none.
        content_light: Its brightest light; None if it has none.
        schema: Name and version of this document.
    """

    settings: EncoderSettings
    encoder_version: str | None
    encoder_options: str | None
    libavcodec: str
    libswscale: str
    pyav: str
    converter: tuple[str, ...]
    matrix: str = "bt709"
    primaries: str = "bt709"
    transfer: str = "bt709"
    color_range: str = "limited"
    mastering_display: MasteringDisplay | None = None
    content_light: ContentLight | None = None
    schema: str = _SCHEMA

    def to_json(self) -> bytes:
        """The record as indented JSON that ends with a newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def encoder_record_path(video: Path) -> Path:
    """Where the record of a video lies: ``clip.mp4.encoder.json`` beside ``clip.mp4``."""
    return Path(f"{video}.encoder.json")  # of "." and "/" too, which have no name


def read_encoder_record(video: str | Path) -> EncoderRecord:
    """Reads the record beside a video.

    Args:
        video: The video file, not the record.

    Raises:
        DataError: If there is no record, or it is not one of this form.
    """
    path = encoder_record_path(Path(video))
    if path.is_fifo():  # nobody may ever write into it
        raise DataError(f"cannot read the encoder record {path}: it is a pipe", path=str(path))
    try:
        record = msgspec.json.decode(path.read_bytes(), type=EncoderRecord)
    except FileNotFoundError:
        raise DataError(
            f"no encoder record for {video}: {path.name} is missing",
            hint="only files written by fleetcraft.video have one",
            path=str(path),
        ) from None
    except (OSError, msgspec.MsgspecError, UsageError, RecursionError) as error:
        raise DataError(f"cannot read the encoder record {path}: {error}", path=str(path)) from None
    if record.schema != _SCHEMA:
        raise DataError(
            f"cannot read the encoder record {path}: its schema is {record.schema!r}, "
            f"expected {_SCHEMA!r}",
            path=str(path),
        )
    return record


def _require(holds: bool, field: str, found: object, expected: str) -> None:
    if not holds:
        raise UsageError(f"encoder setting {field} is {found!r}, expected {expected}", field=field)
