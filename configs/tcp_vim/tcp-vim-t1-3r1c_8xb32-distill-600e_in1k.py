# bash tools/dist_train.sh configs/tcp_vim/tcp-vim-t1-3r1c_8xb32-distill-600e_in1k.py 8
# Three real poles and one pair, as many FLOPs as T1; not run here.
_base_ = './tcp-vim-t1_8xb32-distill-600e_in1k.py'

model = dict(student=dict(backbone=dict(mixer=dict(num_reals=3, num_pairs=1))))
