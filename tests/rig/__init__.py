"""The driver rig: a C library that plays ``libnvidia-ml.so.1`` behind the unmodified binding.

``Rig`` says what it answers, ``build`` compiles it. Invariant: only programs
that are started with ``Rig.env()`` see it; the process of the tests never loads it.
"""

from tests.rig.build import NoCompiler, build, compiler
from tests.rig.rig import Rig

__all__ = ["NoCompiler", "Rig", "build", "compiler"]
