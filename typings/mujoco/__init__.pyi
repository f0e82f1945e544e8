"""The parts of MuJoCo that are used here, typed: sizes are ints, all other fields of a model and its data are arrays."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, SupportsIndex

from numpy.typing import NDArray

Array = NDArray[Any]

__version__: str

class mjtBias(IntEnum):
    mjBIAS_NONE = 0
    mjBIAS_AFFINE = 1

class mjtDisableBit(IntEnum):
    mjDSBL_CONSTRAINT = 1
    mjDSBL_ACTUATION = 2048
    mjDSBL_AUTORESET = 65536

class mjtEnableBit(IntEnum): ...

class mjtEq(IntEnum):
    mjEQ_CONNECT = 0
    mjEQ_WELD = 1
    mjEQ_JOINT = 2
    mjEQ_TENDON = 3

class mjtGain(IntEnum):
    mjGAIN_FIXED = 0
    mjGAIN_AFFINE = 1

class mjtGeom(IntEnum):
    mjGEOM_PLANE = 0
    mjGEOM_SPHERE = 2
    mjGEOM_CAPSULE = 3
    mjGEOM_ELLIPSOID = 4
    mjGEOM_CYLINDER = 5
    mjGEOM_BOX = 6
    mjGEOM_MESH = 7

class mjtJoint(IntEnum):
    mjJNT_FREE = 0
    mjJNT_BALL = 1
    mjJNT_SLIDE = 2
    mjJNT_HINGE = 3

class mjtObj(IntEnum):
    mjOBJ_BODY = 1
    mjOBJ_JOINT = 3
    mjOBJ_SITE = 6
    mjOBJ_TENDON = 18
    mjOBJ_ACTUATOR = 19

class mjtStage(IntEnum):
    mjSTAGE_POS = 1

class mjtState(IntEnum):
    mjSTATE_TIME = 1
    mjSTATE_QPOS = 2
    mjSTATE_QVEL = 4
    mjSTATE_HISTORY = 16
    mjSTATE_CTRL = 64
    mjSTATE_XFRC_APPLIED = 256
    mjSTATE_INTEGRATION = 32767

class mjtIntegrator(IntEnum):
    mjINT_EULER = 0
    mjINT_RK4 = 1
    mjINT_IMPLICIT = 2
    mjINT_IMPLICITFAST = 3

class mjtTrn(IntEnum):
    mjTRN_JOINT = 0
    mjTRN_JOINTINPARENT = 1
    mjTRN_TENDON = 3
    mjTRN_SITE = 4
    mjTRN_BODY = 5

class mjtDyn(IntEnum):
    mjDYN_NONE = 0

class mjtWrap(IntEnum):
    mjWRAP_JOINT = 1

class FatalError(Exception): ...

class Named:
    name: str
    id: int
    def __getattr__(self, name: str, /) -> Array: ...
    def __setattr__(self, name: str, value: Any, /) -> None: ...

class MjOption:
    timestep: float
    impratio: float
    iterations: int
    tolerance: float
    density: float
    viscosity: float
    jacobian: int
    integrator: int
    cone: int
    solver: int
    disableactuator: int
    disableflags: int
    enableflags: int
    gravity: Array
    wind: Array

class Global:
    offwidth: int
    offheight: int

class MjVisual:
    global_: Global

class MjStatistic:
    extent: float
    center: Array

class Contact:
    geom1: int
    geom2: int
    dist: float
    geom: Array
    pos: Array
    frame: Array

class ContactList(Contact):
    def __getitem__(self, index: int) -> Contact: ...

class MjModel:
    na: int
    nbody: int
    ncam: int
    neq: int
    nflex: int
    ngeom: int
    njnt: int
    nkey: int
    nmesh: int
    npair: int
    nplugin: int
    nq: int
    nsensor: int
    nsensordata: int
    nsite: int
    ntendon: int
    nu: int
    nv: int
    names: bytes
    paths: bytes
    opt: MjOption
    stat: MjStatistic
    vis: MjVisual
    @staticmethod
    def from_xml_string(xml: str, assets: Mapping[str, bytes] | None = None) -> MjModel: ...
    @staticmethod
    def from_xml_path(filename: str) -> MjModel: ...
    @staticmethod
    def from_binary_path(filename: str) -> MjModel: ...
    def actuator(self, key: SupportsIndex | str) -> Named: ...
    def body(self, key: SupportsIndex | str) -> Named: ...
    def camera(self, key: SupportsIndex | str) -> Named: ...
    def equality(self, key: SupportsIndex | str) -> Named: ...
    def geom(self, key: SupportsIndex | str) -> Named: ...
    def joint(self, key: SupportsIndex | str) -> Named: ...
    def key(self, key: SupportsIndex | str) -> Named: ...
    def light(self, key: SupportsIndex | str) -> Named: ...
    def mesh(self, key: SupportsIndex | str) -> Named: ...
    def sensor(self, key: SupportsIndex | str) -> Named: ...
    def site(self, key: SupportsIndex | str) -> Named: ...
    def tendon(self, key: SupportsIndex | str) -> Named: ...
    def __copy__(self) -> MjModel: ...
    def __getattr__(self, name: str, /) -> Array: ...

class MjData:
    model: MjModel
    time: float
    ncon: int
    nefc: int
    contact: ContactList
    def __init__(self, model: MjModel) -> None: ...
    def actuator(self, key: SupportsIndex | str) -> Named: ...
    def body(self, key: SupportsIndex | str) -> Named: ...
    def camera(self, key: SupportsIndex | str) -> Named: ...
    def geom(self, key: SupportsIndex | str) -> Named: ...
    def joint(self, key: SupportsIndex | str) -> Named: ...
    def light(self, key: SupportsIndex | str) -> Named: ...
    def sensor(self, key: SupportsIndex | str) -> Named: ...
    def site(self, key: SupportsIndex | str) -> Named: ...
    def tendon(self, key: SupportsIndex | str) -> Named: ...
    def __getattr__(self, name: str, /) -> Array: ...
    def __setattr__(self, name: str, value: Any, /) -> None: ...

class MjsElement:
    """A body or an actuator of a specification; its other fields may be anything."""

    name: str
    def __getattr__(self, name: str, /) -> Any: ...
    def __setattr__(self, name: str, value: Any, /) -> None: ...

class MjSpec:
    memory: int
    option: MjOption
    bodies: list[MjsElement]
    actuators: list[MjsElement]
    joints: list[MjsElement]
    geoms: list[MjsElement]
    sites: list[MjsElement]
    @staticmethod
    def from_string(xml: str, *, assets: dict[str, bytes] | None = None) -> MjSpec: ...
    def add_actuator(self, **fields: Any) -> MjsElement: ...
    def compile(self) -> MjModel: ...
    def to_xml(self) -> str: ...

class Renderer:
    def __init__(self, model: MjModel, height: int = ..., width: int = ...) -> None: ...
    def update_scene(self, data: MjData, camera: int | str = ...) -> None: ...
    def render(self) -> Array: ...
    def close(self) -> None: ...

def mj_collision(m: MjModel, d: MjData) -> None: ...
def mj_comPos(m: MjModel, d: MjData) -> None: ...
def mj_crb(m: MjModel, d: MjData) -> None: ...
def mj_passive(m: MjModel, d: MjData) -> None: ...
def mj_tendon(m: MjModel, d: MjData) -> None: ...
def mj_comVel(m: MjModel, d: MjData) -> None: ...
def mj_contactForce(m: MjModel, d: MjData, id: int, result: Array) -> None: ...
def mj_forward(m: MjModel, d: MjData) -> None: ...
def mj_fullM(m: MjModel, d: MjData, dst: Array) -> None: ...
def mj_inverse(m: MjModel, d: MjData) -> None: ...
def mj_jac(m: MjModel, d: MjData, jacp: Array | None, jacr: Array | None, point: Array, body: int) -> None: ...
def mj_jacBodyCom(m: MjModel, d: MjData, jacp: Array | None, jacr: Array | None, body: int) -> None: ...
def mj_jacDot(m: MjModel, d: MjData, jacp: Array | None, jacr: Array | None, point: Array, body: int) -> None: ...
def mj_jacSite(m: MjModel, d: MjData, jacp: Array | None, jacr: Array | None, site: int) -> None: ...
def mj_kinematics(m: MjModel, d: MjData) -> None: ...
def mj_name2id(m: MjModel, type: int, name: str) -> int: ...
def mj_rne(m: MjModel, d: MjData, flg_acc: int, result: Array) -> None: ...
def mj_saveLastXML(filename: str, m: MjModel) -> None: ...
def mj_stateSize(m: MjModel, sig: int) -> int: ...
def mj_saveModel(m: MjModel, filename: str | None = None, buffer: Array | None = None) -> None: ...
def mj_setConst(m: MjModel, d: MjData) -> None: ...
def mj_sizeModel(m: MjModel) -> int: ...
def mj_step(m: MjModel, d: MjData, nstep: int = 1) -> None: ...
def mjd_inverseFD(
    m: MjModel,
    d: MjData,
    eps: float,
    flg_actuation: bool,
    DfDq: Array | None,
    DfDv: Array | None,
    DfDa: Array | None,
    DsDq: Array | None,
    DsDv: Array | None,
    DsDa: Array | None,
    DmDq: Array | None,
) -> None: ...
def mjd_transitionFD(
    m: MjModel,
    d: MjData,
    eps: float,
    flg_centered: bool,
    A: Array | None,
    B: Array | None,
    C: Array | None,
    D: Array | None,
) -> None: ...
def mju_mat2Quat(quat: Array, mat: Array) -> None: ...
def mju_mulQuat(res: Array, quat1: Array, quat2: Array) -> None: ...
def mju_quat2Mat(res: Array, quat: Array) -> None: ...
def mju_quat2Vel(res: Array, quat: Array, dt: float) -> None: ...
def mju_rotVecQuat(res: Array, vec: Array, quat: Array) -> None: ...
def set_mju_user_warning(callback: Callable[[str], None] | None) -> None: ...
