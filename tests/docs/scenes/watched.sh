# What changes when changes.log says that the change before it was seen.
rm -f changes.log
cp $SCENES/watched.py train.py
read pid < <(python train.py 2>/dev/null)
