package disk

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Glob returns the sorted paths in dir that match a pattern of [path.Match]. Unlike [filepath.Glob], it takes
// dir literally.
func Glob(dir, pattern string) ([]string, error) {
	names, err := fs.Glob(os.DirFS(dir), pattern)
	for i, name := range names {
		names[i] = filepath.Join(dir, filepath.FromSlash(name))
	}
	return names, err
}
