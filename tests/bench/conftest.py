"""Trees of /proc, /sys and /etc of machines that the one at hand is not: an HGX node and an AMD node."""

from __future__ import annotations

from pathlib import Path

import pytest

THREADS_A_CORE = 2
HGX_FLAGS = "fpu sse4_2 avx avx2 fma avx512f avx512bw avx512vl avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"


class Tree:
    """Lays files out below ``root`` as the kernel would."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)

    def pci_device(self, path: str, vendor: str, pci_class: str, node: int, driver: str) -> str:
        """A device below ``sys/devices``; returns its folder."""
        folder = f"sys/devices/{path}"
        self.write(f"{folder}/vendor", vendor)
        self.write(f"{folder}/class", pci_class)
        self.write(f"{folder}/numa_node", str(node))
        self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        self.link(f"sys/bus/pci/devices/{Path(path).name}", folder)
        return folder

    def interface(self, name: str, device: str | None, link_type: int, speed: int) -> None:
        """A network interface; without a device it is virtual."""
        folder = f"{device}/net/{name}" if device else f"sys/devices/virtual/net/{name}"
        self.write(f"{folder}/type", str(link_type))
        self.write(f"{folder}/speed", str(speed))
        if device:
            self.link(f"{folder}/device", device)
        self.link(f"sys/class/net/{name}", folder)

    def rdma_device(self, name: str, device: str, hca_type: str, rate: str, link_layer: str) -> None:
        folder = f"{device}/infiniband/{name}"
        self.write(f"{folder}/hca_type", hca_type)
        self.write(f"{folder}/ports/1/rate", rate)
        self.write(f"{folder}/ports/1/link_layer", link_layer)
        self.link(f"{folder}/device", device)
        self.link(f"sys/class/infiniband/{name}", folder)

    def processors(self, entry: str, sockets: int, cores: int, caches: dict[str, tuple[int, str, int]]) -> None:
        """Sockets of ``cores`` cores with two threads each; caches as name: (level, kibibytes, cores that share it)."""
        total = sockets * cores
        cpus = range(total * THREADS_A_CORE)
        self.write("proc/cpuinfo", "\n\n".join(f"processor\t: {cpu}\n{entry}" for cpu in cpus))
        self.write("sys/devices/system/cpu/online", f"0-{len(cpus) - 1}")
        for cpu in cpus:
            core = cpu % total
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            self.write(f"{folder}/topology/physical_package_id", str(core // cores))
            self.write(f"{folder}/topology/core_cpus_list", f"{core},{core + total}")
            for index, (name, (level, kibibytes, shared)) in enumerate(caches.items()):
                first = core // shared * shared
                sharers = f"{first}-{first + shared - 1},{first + total}-{first + total + shared - 1}"
                self.write(f"{folder}/cache/index{index}/type", name.split()[-1])
                self.write(f"{folder}/cache/index{index}/level", str(level))
                self.write(f"{folder}/cache/index{index}/size", f"{kibibytes}K")
                self.write(f"{folder}/cache/index{index}/shared_cpu_list", sharers)
        for node in range(sockets):
            self.write(f"sys/devices/system/node/node{node}/cpulist", "")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty tree."""
    return Tree(tmp_path / "root")


@pytest.fixture
def hgx(tree: Tree) -> Path:
    """Root of a node with 2 Xeons (8 cores in all), 8 H100s, and an InfiniBand NIC beside each on its PCIe switch."""
    flags = f"model name\t: Intel(R) Xeon(R)  Platinum 8480C\ncpu MHz\t\t: 3000.125\nflags\t\t: {HGX_FLAGS}"
    caches = {"L1 Data": (1, 48, 1), "L1 Instruction": (1, 32, 1), "L2 Unified": (2, 2048, 1)}
    tree.processors(flags, sockets=2, cores=4, caches={**caches, "L3 Unified": (3, 107520, 4)})
    tree.write("sys/devices/system/cpu/intel_pstate/no_turbo", "0")
    for cpu in range(16):
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_driver", "intel_pstate")
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", "3800000")
        tree.write(f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor", "powersave")
    tree.write("proc/meminfo", "MemTotal:       2113381128 kB\nMemAvailable:   2000000000 kB")
    tree.write("proc/sys/kernel/osrelease", "5.15.0-1046-nvidia")
    tree.write("etc/os-release", 'PRETTY_NAME="Ubuntu 22.04.4 LTS"\nID=ubuntu')
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024"
    tree.write("proc/driver/nvidia/version", f"{version}\nGCC version:  gcc version 11.4.0")
    for index in range(8):
        bus = 0x10 + 0x18 * index
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        gpu, nic = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"
        tree.pci_device(f"{switch}/0000:{bus + 2:02x}:00.0/{gpu}", "0x10de", "0x030200", index // 4, "nvidia")
        tree.write(f"proc/driver/nvidia/gpus/{gpu}/information", f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:\t{index}")
        card = tree.pci_device(f"{switch}/0000:{bus + 2:02x}:01.0/{nic}", "0x15b3", "0x020700", index // 4, "mlx5_core")
        tree.rdma_device(f"mlx5_{index}", card, "MT4129", "400 Gb/sec (4X NDR)", "InfiniBand")
        tree.interface(f"ibp{bus + 4}s0", card, 32, 400000)
    board = tree.pci_device("pci0000:00/0000:00:1d.0/0000:05:00.0", "0x8086", "0x020000", 0, "i40e")
    tree.interface("enx0c37960010ab", board, 1, 10000)
    tree.pci_device("pci0000:00/0000:00:1e.0/0000:06:00.0", "0x1a03", "0x030000", 0, "ast")
    for name in ("lo", "docker0", "vethd3adb33f", "bond0"):
        tree.interface(name, None, 772 if name == "lo" else 1, 10000)
    return tree.root


@pytest.fixture
def amd_node(tree: Tree) -> Path:
    """Root of a node with an EPYC (8 cores, 2 chiplets), 4 GCDs of 2 MI250X, and 2 Slingshot-like NICs."""
    entry = "model name\t: AMD EPYC 7A53 64-Core Processor\nflags\t\t: fpu sse4_2 avx avx2 fma"
    caches = {"L1 Data": (1, 32, 1), "L2 Unified": (2, 512, 1), "L3 Unified": (3, 32768, 4)}
    tree.processors(entry, sockets=1, cores=8, caches=caches)
    for cpu in range(16):
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_driver", "acpi-cpufreq")
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", "2000000")
        tree.write(f"sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_governor", "performance")
    tree.write("sys/devices/system/cpu/cpufreq/boost", "1")
    tree.write("proc/meminfo", "MemTotal:       527000000 kB\nMemAvailable:   500000000 kB")
    tree.write("sys/module/amdgpu/version", "6.3.6")
    kfd = "sys/class/kfd/kfd/topology/nodes"
    tree.write(f"{kfd}/0/properties", "cpu_cores_count 16\nsimd_count 0")
    for index in range(4):
        bus = 0xC1 + 5 * index
        root = f"pci0000:{0xC0 + 5 * index:02x}/0000:{0xC0 + 5 * index:02x}:01.1"
        gpu = tree.pci_device(f"{root}/0000:{bus:02x}:00.0", "0x1002", "0x038000", 0, "amdgpu")
        tree.write(f"{gpu}/hwmon/hwmon{index}/temp1_input", str(41000 + index))
        tree.write(f"{gpu}/hwmon/hwmon{index}/freq1_input", "1700000000")
        facts = {"simd_count": 440, "domain": 0, "location_id": bus << 8, "vendor_id": 4098, "device_id": 0x7408}
        tree.write(f"{kfd}/{index + 1}/properties", "\n".join(f"{name} {value}" for name, value in facts.items()))
        tree.write(f"{kfd}/{index + 1}/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 68702699520")
        for link, kind in enumerate((2, 11, 11, 11)):
            tree.write(f"{kfd}/{index + 1}/io_links/{link}/properties", f"type {kind}\nweight 15")
        if index % 2 == 0:
            nic = tree.pci_device(f"{root}/0000:{bus + 1:02x}:00.0", "0x17db", "0x020000", 0, "cxi_core")
            tree.interface(f"hsn{index // 2}", nic, 1, 200000)
    return tree.root
