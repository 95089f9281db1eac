"""Machines and devices, as data.

A device is a separate address space on this machine: it has an arena, a list of the kernels it lacks, the layout and
dtype that its kernels want, and a modelled link to the host. No accelerator is needed; every transfer really copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memopt.errors import OptionError
from memopt.ops import has_op
from memopt.types import as_dtype

__all__ = ["HOST", "Device", "Machine", "Placement"]

HOST = "host"
_LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a tensor's bytes lie: device, stored dtype, layout of rank-4 data."""

    device: str
    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.dtype}/{self.layout}@{self.device}"


@dataclass(frozen=True, slots=True)
class Device:
    """One address space.

    name        its name; `host` is the machine's host
    capacity_bytes  the most that arena, scratch, feeds, parameters and outputs may take together; None: no limit
    lacks       ops that have no kernel here; their nodes run on the host instead
    dtypes      graph dtype -> the dtype in which its kernels want it (`{"float64": "float32"}`)
    layouts     op -> the layout that its kernel wants (`{"Conv": "NHWC"}`)
    alignment   of every buffer's offset in the arena, in bytes (a power of two)
    bandwidth, latency   of the link to the host, in bytes a second and seconds; only modelled times use them
    """

    name: str
    capacity_bytes: int | None = None
    lacks: frozenset[str] = frozenset()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    alignment: int = 64
    bandwidth: float = 12e9
    latency: float = 10e-6

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("_", "").replace("-", "").isalnum():
            raise OptionError(f"device name {self.name!r} is not made of letters, digits, - and _")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise OptionError(f"device {self.name}: alignment {self.alignment} is not a power of two")
        if self.capacity_bytes is not None and self.capacity_bytes < 0:
            raise OptionError(f"device {self.name}: capacity {self.capacity_bytes} is negative")
        unknown = sorted(op for op in (*self.lacks, *self.layouts) if not has_op(op))
        if unknown:
            raise OptionError(f"device {self.name} names ops that there are not: {', '.join(unknown)}")
        for op, layout in self.layouts.items():
            if layout not in _LAYOUTS:
                raise OptionError(f"device {self.name}: layout {layout!r} of {op} is not one of {', '.join(_LAYOUTS)}")
        object.__setattr__(self, "dtypes", {as_dtype(a): as_dtype(b) for a, b in dict(self.dtypes).items()})
        object.__setattr__(self, "lacks", frozenset(self.lacks))

    def kernel_dtype(self, dtype: str) -> str:
        """The dtype in which a kernel of this device takes data that the graph calls `dtype`."""
        return self.dtypes.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class Machine:
    """A host and devices. Nodes that name no device run on `default`, where the parameters live too."""

    host: Device = field(default_factory=lambda: Device(HOST))
    devices: tuple[Device, ...] = ()
    default: str = HOST

    def __post_init__(self) -> None:
        names = [device.name for device in self.all_devices]
        if len(set(names)) != len(names):
            raise OptionError(f"two devices of a machine have one name: {', '.join(names)}")
        if self.default not in names:
            raise OptionError(f"the default device {self.default!r} is not one of {', '.join(names)}")
        if self.host.lacks:
            raise OptionError(
                f"the host lacks {', '.join(sorted(self.host.lacks))}; but it is where missing kernels fall back to"
            )

    @staticmethod
    def host_only(**options: object) -> Machine:
        """A machine with one device, the host; options are those of `Device`."""
        return Machine(Device(HOST, **options))  # type: ignore[arg-type] # Device checks them

    @staticmethod
    def host_and(name: str, *, lacks: Iterable[str] = (), host: Device | None = None, **options: object) -> Machine:
        """A host and one device, which is the default; `lacks` and options (as of `Device`) are the device's."""
        device = Device(name, lacks=frozenset(lacks), **options)  # type: ignore[arg-type] # Device checks them
        return Machine(host or Device(HOST), (device,), name)

    @property
    def all_devices(self) -> tuple[Device, ...]:
        """The host first, then the others."""
        return (self.host, *self.devices)

    def device(self, name: str) -> Device:
        """The device of that name."""
        for device in self.all_devices:
            if device.name == name:
                return device
        raise OptionError(f"the machine has no device {name!r}; it has {', '.join(d.name for d in self.all_devices)}")

    def __str__(self) -> str:
        return " + ".join(
            device.name + (f" (lacks {', '.join(sorted(device.lacks))})" if device.lacks else "")
            for device in self.all_devices
        )
