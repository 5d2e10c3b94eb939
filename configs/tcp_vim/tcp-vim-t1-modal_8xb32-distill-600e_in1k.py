# bash tools/dist_train.sh configs/tcp_vim/tcp-vim-t1-modal_8xb32-distill-600e_in1k.py 8
# Bounded modes in place of the direct form; ours, not the paper's; not run here.
_base_ = './tcp-vim-t1_8xb32-distill-600e_in1k.py'

model = dict(student=dict(backbone=dict(mixer=dict(realization='modal'))))
