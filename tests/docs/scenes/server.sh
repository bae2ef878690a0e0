# serve.py, which is pid, holds 12 GiB.
cp $SCENES/hold.py serve.py
read pid < <(GIB=12 python serve.py 2>/dev/null)
