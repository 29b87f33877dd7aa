"""DFM pre-training: the teacher every later stage starts from."""

from tsdfm.teacher.settings import TeacherSettings

__all__ = ["TeacherSettings"]
