"""Reads untrusted robot descriptions: confined to their folder, bounded in size, without entities.

MuJoCo follows `../` includes, hangs on a large `replicate` and accepts a NaN mass. So the file is parsed here first,
its includes are put in place, its files are read under one root, and MuJoCo gets plain XML and a dictionary of bytes.
"""

from __future__ import annotations

import math
import re
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any
from xml.parsers import expat

from instep.core.errors import BadInput
from instep.core.reading import read_file
from instep.core.world import frozen_dataclass

MAX_XML = 16 * 2**20
"""Largest XML file [bytes]."""
MAX_FILES = 2**30
"""Largest sum of meshes and textures [bytes]."""
MAX_DEPTH = 64
MAX_ELEMENTS = 50_000
MAX_URDF_NUMBER = 1e30
"""Largest number of a URDF."""
MAX_COPIES = 10_000
"""Largest number of copies nested `replicate` elements may make."""

_CELLS = {  # element: (attributes whose product counts, largest product)
    "hfield": (("nrow", "ncol"), 4_000_000),
    "texture": (("width", "height"), 8192 * 8192),
    "flexcomp": (("count",), 100_000),
    "composite": (("count",), 100_000),
}
_NAMES = frozenset((
    "name", "class", "childclass", "file", "filename", "content_type", "prefix", "joint", "body", "geom", "site",
    "target", "material",
))  # fmt: skip
_NOT_FINITE = re.compile(r"[+-]?(nan|inf)(?:inity|\(.*\)?)?", re.IGNORECASE)
"""How C writes what is not a finite number, `nan(7)` included."""
_OPEN_ENDED = ("range", "ctrlrange", "forcerange", "actrange", "lengthrange", "actuatorfrcrange")
"""Attributes in which infinity means: no limit."""
PNG = b"\x89PNG\r\n\x1a\n"
"""First bytes of a PNG image."""
_FILES = {"mesh": "meshdir", "texture": "texturedir", "hfield": "assetdir", "skin": "assetdir", "flexcomp": "meshdir"}
_TEXTURE_FILES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")


@frozen_dataclass
class ModelSource:
    """A description without includes or paths: XML and the bytes of the files it names."""

    path: Path
    xml: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    attached: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Models that it attaches, where they are not yet in place."""

    @property
    def urdf(self) -> bool:
        """Whether it is a URDF, which has no way to describe actuators."""
        return self.xml.startswith("<robot")


def read_source(path: Path, root: Path | None = None, *, attach: bool = True) -> ModelSource:
    """Read an MJCF or URDF file; includes, meshes and textures must lie under `root` (default: the file's folder).

    Attached models are put in place by MuJoCo; with `attach=False` they are only read.
    """
    path = Path(path)
    reader = _Reader((root or path.parent).resolve(), path.name)
    tree = reader.parse(path)
    if tree.tag == "robot":
        reader.confine_urdf(tree)
    elif tree.tag == "mujoco":
        reader.confine_mjcf(tree, path.resolve())
    else:
        raise BadInput(f"{path.name} starts with <{tree.tag}>, but a robot is described by <mujoco> or <robot> (URDF).")
    xml = ET.tostring(tree, encoding="unicode")
    if reader.models and not attach:
        return ModelSource(path, xml, reader.files, reader.models)
    return ModelSource(path, _flattened(path.name, xml, reader) if reader.models else xml, reader.files)


def _flattened(name: str, xml: str, reader: _Reader) -> str:
    """The description with its attached models in place; MuJoCo finds those in a folder only."""
    import mujoco

    specs: Any = mujoco.MjSpec
    with tempfile.TemporaryDirectory() as folder:
        for key, content in (reader.files | reader.models | {"main model.xml": xml.encode()}).items():
            (Path(folder) / key).write_bytes(content)
        try:
            spec = specs.from_file(str(Path(folder) / "main model.xml"))
            spec.compile()
            return spec.to_xml()
        except (ValueError, mujoco.FatalError) as error:
            what = str(error).replace(f"{folder}/", "").splitlines()[0].removeprefix("Error: ").rstrip(".")
            raise BadInput(f"MuJoCo cannot attach the models that {name} names: {what}.") from None


def _shown_alone(link: ET.Element, visual: ET.Element) -> bool:
    """Whether a shape is all that shows a link of a URDF: it has no collision shape, and mass does not come from it."""
    shape = visual.find("geometry")
    plain = shape is not None and any(shape.find(name) is not None for name in ("box", "cylinder", "sphere", "capsule"))
    return plain and link.find("collision") is None and link.find("inertial") is not None


class _Reader:
    """One reading of one description, with counters of its size."""

    def __init__(self, root: Path, name: str):
        self.root, self.name = root, name
        self.files: dict[str, bytes] = {}
        self.models: dict[str, bytes] = {}
        """Attached models, confined as the description is."""
        self.elements = 0
        self.bytes = 0

    def parse(self, path: Path) -> ET.Element:
        """The tree of one XML file, with DOCTYPE and ENTITY refused while reading."""
        text = read_file(path, MAX_XML)
        builder, depth = ET.TreeBuilder(), 0
        parser = expat.ParserCreate()

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal depth
            depth, self.elements = depth + 1, self.elements + 1
            if depth > MAX_DEPTH or self.elements > MAX_ELEMENTS:
                raise BadInput(
                    f"{path.name} is nested deeper than {MAX_DEPTH} or has more than {MAX_ELEMENTS} elements."
                )
            builder.start(tag, attributes)

        def end(tag: str) -> None:
            nonlocal depth
            depth -= 1
            builder.end(tag)

        def reject(*_: object) -> int:
            raise BadInput(f"{path.name} declares a DOCTYPE or an entity, which is refused; remove it.")

        parser.StartElementHandler, parser.EndElementHandler = start, end
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = reject
        parser.ExternalEntityRefHandler = reject
        try:
            parser.Parse(text, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise BadInput(f"{path.name} is not well-formed XML: {error}.") from None
        return builder.close()

    def include(self, element: ET.Element, trail: tuple[Path, ...], base: PurePosixPath) -> None:
        """Put the children of included files in place of each <include>; paths are relative to `base`."""
        for index, child in reversed(list(enumerate(element))):
            if child.tag != "include":
                self.include(child, trail, base)
                continue
            path = self.inside(str(base / child.get("file", "")), "include")
            if path in trail:
                raise BadInput(f"{path.name} includes itself.")
            part = self.parse(path)
            self.include(part, (*trail, path), base)
            element.remove(child)
            for offset, inner in enumerate(part):
                element.insert(index + offset, inner)

    def check(self, element: ET.Element, copies: int) -> None:
        """Refuse what would make the compiler hang or hand NaN to the physics."""
        if element.tag == "replicate":
            count = self.whole(element, "count")
            copies *= max(1, count)
            if count < 0 or copies > MAX_COPIES:
                raise BadInput(
                    f"{self.name} replicates a body {min(count, copies)} times; at most {MAX_COPIES} copies are read."
                )
        attributes, most = _CELLS.get(element.tag, ((), 0))
        if attributes:
            cells = math.prod(self.whole(element, name) or 1 for name in attributes)
            if not 0 <= cells <= most:
                raise BadInput(f"<{element.tag}> in {self.name} asks for {cells} cells; at most {most} are read.")
        if element.tag == "size":
            self.check_size(element)
        for name, value in element.attrib.items():
            if name not in _NAMES:
                self.check_finite(element, name, value)
        for child in element:
            self.check(child, copies)

    def check_finite(self, element: ET.Element, name: str, value: str) -> None:
        for word in value.split():
            if not (bad := _NOT_FINITE.fullmatch(word)):
                continue
            if bad[1].lower() == "nan" or name not in _OPEN_ENDED:
                label = element.get("name")
                where = f"<{element.tag}{f' name={label!r}' if label else ''}>"
                raise BadInput(f"{name} of {where} in {self.name} is {word!r}; it must be a finite number.")

    def check_numbers(self, element: ET.Element) -> None:
        """Refuse what MuJoCo passes over in a URDF: numbers that are empty or absurd, and limits without a range."""
        for name, value in element.attrib.items():
            try:
                sound = abs(float(value)) <= MAX_URDF_NUMBER
            except ValueError:
                sound = False
            if not sound:
                raise BadInput(f"{name} of <{element.tag}> in {self.name} is {value[:40]!r}; a number was expected.")
        low, high = (float(element.get(name, "0")) for name in ("lower", "upper"))
        if element.tag == "limit" and low == high != 0:
            raise BadInput(f"A <limit> in {self.name} goes from {low:g} to {high:g}; lower must be below upper.")

    def check_size(self, element: ET.Element) -> None:
        memory = element.get("memory", "-1").strip().upper()
        scale = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}.get(memory[-1:], 1)
        digits = memory.rstrip("KMGTPE")
        if digits.lstrip("-").isdigit() and int(digits) * scale > 2**28:
            raise BadInput(f"{self.name} asks for {memory} of memory; at most 256M are given.")
        for name in element.attrib:
            if name != "memory" and not -1 <= self.whole(element, name) <= 1_000_000:
                raise BadInput(f"{self.name} asks for {name}={element.get(name)}; at most 1000000 are given.")

    def whole(self, element: ET.Element, name: str) -> int:
        """An attribute of whole numbers, multiplied; 0 where absent."""
        words = element.get(name, "0").split()
        try:
            return math.prod(int(float(word)) for word in words)
        except (ValueError, OverflowError):
            raise BadInput(
                f"{name} of <{element.tag}> in {self.name} must be a whole number, not {element.get(name)!r}."
            ) from None

    def confine_mjcf(self, tree: ET.Element, *trail: Path) -> None:
        """Put includes in place, read every file under the root and give it a plain name.

        `trail` is the file of the tree, after those of the models that attach it.
        """
        base = PurePosixPath(trail[-1].parent.relative_to(self.root)) if len(trail) > 1 else PurePosixPath()
        self.include(tree, trail, base)
        self.check(tree, 1)
        folders = {"meshdir": "", "texturedir": "", "assetdir": ""}
        for compiler in tree.findall("compiler"):
            shared = compiler.attrib.pop("assetdir", None)
            for kind in folders:
                folders[kind] = compiler.attrib.pop(kind, shared if shared is not None else folders[kind])
            compiler.attrib.pop("strippath", None)
        for element in tree.iter():
            names = _TEXTURE_FILES if element.tag == "texture" else ("file",)
            for name in names:
                wanted = element.get(name)
                if wanted and element.tag == "model":
                    element.set(name, self.attach(str(base / wanted), trail))
                elif wanted and element.tag != "include":
                    folder = folders.get(_FILES.get(element.tag, "assetdir"), "")
                    key = self.take(str(base / folder / wanted), element.tag)
                    # An asset without a name is known by its file's; keep that although the file is renamed.
                    if name == "file" and "name" not in element.attrib and element.tag in ("mesh", "texture", "hfield"):
                        element.set("name", PurePosixPath(wanted).stem)
                    element.set(name, key)

    def attach(self, wanted: str, trail: tuple[Path, ...]) -> str:
        """Read a model that another attaches parts of; the key of its file."""
        path = self.inside(wanted, "model")
        if path in trail:
            raise BadInput(f"{path.name} attaches itself.")
        part = self.parse(path)
        if part.tag != "mujoco":
            raise BadInput(f"{self.name} attaches {wanted!r}, which starts with <{part.tag}>; <mujoco> was expected.")
        self.confine_mjcf(part, *trail, path)
        key = f"model{len(self.models)}_{path.name}"
        self.models[key] = ET.tostring(part)
        return key

    def confine_urdf(self, tree: ET.Element) -> None:
        """The same for URDF, where paths may start with package:// and are looked up under the root only."""
        self.check(tree, 1)
        for path in (".//joint/limit", ".//joint/dynamics", ".//inertial/mass", ".//inertial/inertia"):
            for element in tree.findall(path):
                self.check_numbers(element)
        for link in tree.iter("link"):
            for visual in link.findall("visual"):
                if not _shown_alone(link, visual):
                    link.remove(visual)  # MuJoCo keeps collision shapes of a URDF; appearance comes from Gaussians
        if any(link.find("visual") is not None for link in tree.iter("link")):
            extension = tree.find("mujoco")
            extension = ET.SubElement(tree, "mujoco") if extension is None else extension
            compiler = extension.find("compiler")
            (ET.SubElement(extension, "compiler") if compiler is None else compiler).set("discardvisual", "false")
        for mesh in tree.iter("mesh"):
            wanted = mesh.get("filename", "")
            mesh.set("filename", self.take(self.unpack(wanted), "mesh"))
        for compiler in tree.iter("compiler"):
            compiler.attrib.pop("meshdir", None)

    def unpack(self, wanted: str) -> str:
        for scheme in ("package://", "model://"):
            if wanted.startswith(scheme):
                parts = PurePosixPath(wanted.removeprefix(scheme)).parts
                tails = [str(PurePosixPath(*parts[skip:])) for skip in range(min(2, len(parts)))]
                found = [t for t in tails if t and (self.root / t).is_file()]
                return found[0] if found else tails[-1] if tails else wanted
        return wanted.removeprefix("file://") if wanted.startswith("file://") else wanted

    def take(self, wanted: str, kind: str) -> str:
        """Read a file under the root; the key MuJoCo will know it by."""
        path = self.inside(wanted, kind)
        key = f"{len(self.files):03d}_{path.name}"
        for known, content in self.files.items():
            if known.split("_", 1)[1] == path.name and content == read_file(path, MAX_FILES):
                return known
        data = read_file(path, MAX_FILES)
        if data[:8] == PNG:
            self.check_image(data, path.name)
        self.bytes += len(data)
        if self.bytes > MAX_FILES:
            raise BadInput(f"The meshes and textures of {self.name} are larger than {MAX_FILES >> 20} MiB in all.")
        self.files[key] = data
        return key

    def check_image(self, data: bytes, name: str) -> None:
        """Refuse a PNG image of more pixels than a texture may have, before it is unpacked."""
        width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
        if not 0 < width * height <= _CELLS["texture"][1]:
            raise BadInput(f"The image {name} that {self.name} names has {width} x {height} pixels, which is refused.")

    def inside(self, wanted: str, kind: str) -> Path:
        """The path of a file named in the description, which must not leave the root."""
        if not wanted or "\0" in wanted or "://" in wanted:
            raise BadInput(f"{self.name} names the {kind} file {wanted!r}; a path inside its folder was expected.")
        try:
            path = (self.root / wanted).resolve()
        except (OSError, RuntimeError):
            raise BadInput(f"{self.name} names the {kind} file {wanted!r}, which is a link to itself.") from None
        if Path(wanted).is_absolute() or not path.is_relative_to(self.root):
            raise BadInput(
                f"{self.name} names the {kind} file {wanted!r}, which lies outside {self.root.name!r}; "
                f"copy the file into that folder."
            )
        if not path.is_file():
            raise BadInput(f"{self.name} names the {kind} file {wanted!r}, which does not exist.")
        return path
