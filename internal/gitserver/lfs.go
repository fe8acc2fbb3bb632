package gitserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// LFS is the Git LFS server of a repository: the batch API for downloads, and the objects, below
// {URL}/info/lfs. Objects are files in the repository's folder.
type LFS struct {
	base string // URL of the objects
	dir  string // with a file for each object

	mu      sync.Mutex
	batches []int
	gets    []string
	hooks   LFSHooks
}

// LFSHooks change what an LFS server answers. All are optional.
type LFSHooks struct {
	// objects in a batch; larger ones are refused with 413
	MaxBatch int
	// called before a batch request is served
	Batch  func(w http.ResponseWriter, r *http.Request) (done bool)
	Answer func(response map[string]any, objects []map[string]any)              // called with the response of a batch
	Get    func(w http.ResponseWriter, r *http.Request, oid string) (done bool) // called before an object is served
}

const lfsPrefix = "info/lfs/"

// LFS returns the LFS server of repo.
func (s *Server) LFS(repo string) *LFS {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state(repo)
	if state.lfs == nil {
		state.lfs = &LFS{base: s.URL(repo) + "/" + lfsPrefix + "objects/", dir: filepath.Join(s.Dir(repo), "lfs")}
	}
	return state.lfs
}

// Put stores an object and returns its pointer. It panics if the object cannot be written.
func (l *LFS) Put(content string) (pointer string) {
	pointer, oid := LFSPointer(content)
	err := os.MkdirAll(l.dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(l.dir, oid), []byte(content), 0o644)
	}
	if err != nil {
		panic(err)
	}
	return pointer
}

// has reports whether there is an object.
func (l *LFS) has(oid string) bool {
	if !filepath.IsLocal(oid) {
		return false
	}
	_, err := os.Stat(filepath.Join(l.dir, oid))
	return err == nil
}

// LFSPointer returns the pointer to an object with this content, and its OID.
func LFSPointer(content string) (pointer, oid string) {
	sum := sha256.Sum256([]byte(content))
	oid = hex.EncodeToString(sum[:])
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content)), oid
}

// Set replaces the hooks.
func (l *LFS) Set(hooks LFSHooks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hooks = hooks
}

// Requests returns the number of objects in each batch request so far, and "{oid} {Range}" of each download,
// and forgets them.
func (l *LFS) Requests() (batches []int, gets []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	batches, gets = l.batches, l.gets
	l.batches, l.gets = nil, nil
	return batches, gets
}

func (l *LFS) serve(w http.ResponseWriter, r *http.Request, path string) {
	l.mu.Lock()
	hooks := l.hooks
	l.mu.Unlock()
	oid, isObject := strings.CutPrefix(path, "objects/")
	switch {
	case path == "objects/batch":
		if hooks.Batch == nil || !hooks.Batch(w, r) {
			l.serveBatch(w, r, hooks)
		}
	case isObject:
		l.mu.Lock()
		l.gets = append(l.gets, strings.TrimSpace(oid+" "+r.Header.Get("Range")))
		l.mu.Unlock()
		switch {
		case hooks.Get != nil && hooks.Get(w, r, oid):
		case !l.has(oid):
			http.NotFound(w, r)
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeFile(w, r, filepath.Join(l.dir, oid))
		}
	default:
		http.NotFound(w, r)
	}
}

func (l *LFS) serveBatch(w http.ResponseWriter, r *http.Request, hooks LFSHooks) {
	var request struct {
		Objects []struct {
			OID  string `json:"oid"`
			Size int64  `json:"size"`
		} `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, "not JSON", http.StatusUnprocessableEntity)
		return
	}
	l.mu.Lock()
	l.batches = append(l.batches, len(request.Objects))
	objects := []map[string]any{}
	for _, o := range request.Objects {
		object := map[string]any{"oid": o.OID, "size": o.Size}
		if l.has(o.OID) {
			object["actions"] = map[string]any{"download": map[string]any{"href": l.base + o.OID}}
		} else {
			object["error"] = map[string]any{"code": http.StatusNotFound, "message": "Object does not exist"}
		}
		objects = append(objects, object)
	}
	l.mu.Unlock()
	if hooks.MaxBatch > 0 && len(objects) > hooks.MaxBatch {
		http.Error(w, "too many objects", http.StatusRequestEntityTooLarge)
		return
	}
	response := map[string]any{"transfer": "basic", "objects": objects}
	if hooks.Answer != nil {
		hooks.Answer(response, objects)
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(response) // the client may disconnect
}
