"""Training of many-step models from text: the teachers that later stages start from."""

from tsdfm.teacher.settings import TeacherSettings

__all__ = ["TeacherSettings"]
