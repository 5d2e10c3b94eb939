# bash tools/dist_train.sh configs/tcp_vim/imagenet.py 8
# Short name of the published recipe; expected: top-1 of 76.0 % as published.
_base_ = './tcp-vim-t1_8xb32-distill-600e_in1k.py'
