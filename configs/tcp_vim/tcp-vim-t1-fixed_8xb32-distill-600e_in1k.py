# bash tools/dist_train.sh configs/tcp_vim/tcp-vim-t1-fixed_8xb32-distill-600e_in1k.py 8
# Poles that no token changes; not run here.
_base_ = './tcp-vim-t1_8xb32-distill-600e_in1k.py'

model = dict(student=dict(backbone=dict(mixer=dict(fixed_poles=True))))
