"""Distribution matching: a student whose texts a teacher cannot tell from its own, by way of an auxiliary network.

z_a      noised data, or a text that the student is writing, at t_a = j/k before a step h = 1/k
g        = softmax(student(z_a)),   x ~ g, one draw a position
z_b      x noised again, at t_b (`forms`)
auxiliary   learns x from z_b: what a teacher of the student's own texts would say
student     Σ_v g(v) · clip[log auxiliary(v | z_b) − log teacher(v | z_b), ±c],   gradient through g alone

settings    dials of the auxiliary and of the watch          times       which rows learn what, k and j
forms       the laws of t_b and z_b                          auxiliary   the network beside the student
running     the texts that the student is writing            watch       collapse: told, and taken back
width       a reward for using all words                     tilt        the compass inside the reward
match       the objective of the matched rows                task        all of it, in one training
"""
