package pressure_test

import (
	"math"
	"testing"
	"testing/fstest"

	"lockstep/internal/pressure"
)

const gib = "1073741824"

// machine are the files of a machine with half of its memory available.
var machine = map[string]string{
	"proc/meminfo":         "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n",
	"proc/pressure/memory": "some avg10=1.00 avg60=9.00 avg300=9.00 total=9\nfull avg10=50.00 avg60=0.00 avg300=0.00 total=0\n",
	"proc/pressure/cpu":    "some avg10=2.00 avg60=9.00 avg300=9.00 total=9\n",
}

// container are those of a container with a GiB, of which 900 MiB are in use and 400 MiB of that page cache and slabs.
var container = map[string]string{
	"proc/self/cgroup":                 "0::/\n",
	"sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
	"sys/fs/cgroup/memory.max":         gib + "\n",
	"sys/fs/cgroup/memory.high":        "max\n",
	"sys/fs/cgroup/memory.current":     "943718400\n",
	"sys/fs/cgroup/memory.stat":        "anon 524288000\nactive_file 104857600\ninactive_file 209715200\nslab_reclaimable 104857600\n",
	"sys/fs/cgroup/memory.pressure":    "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	"sys/fs/cgroup/cpu.pressure":       "some avg10=80.00 avg60=0.00 avg300=0.00 total=0\n",
}

// service are those of a service of systemd with a soft limit, within a slice with a limit that is closer.
var service = map[string]string{
	"proc/self/cgroup":                                               "1:name=systemd:/\n0::/lockstep.slice/worker.service\n",
	"sys/fs/cgroup/lockstep.slice/memory.max":                        "1000\n",
	"sys/fs/cgroup/lockstep.slice/memory.current":                    "950\n",
	"sys/fs/cgroup/lockstep.slice/worker.service/cgroup.controllers": "memory\n",
	"sys/fs/cgroup/lockstep.slice/worker.service/memory.max":         "max\n",
	"sys/fs/cgroup/lockstep.slice/worker.service/memory.high":        "500\n",
	"sys/fs/cgroup/lockstep.slice/worker.service/memory.current":     "250\n",
}

func TestReadings(t *testing.T) {
	for name, tc := range map[string]struct {
		files []map[string]string
		want  pressure.Reading
	}{
		"a machine without control groups":        {[]map[string]string{machine}, pressure.Reading{Memory: 0.5, MemoryStall: 0.01, CPUStall: 0.02}},
		"a container":                             {[]map[string]string{machine, container}, pressure.Reading{Memory: 500.0 / 1024, MemoryStall: 0.125, CPUStall: 0.8}},
		"a limit of the parent":                   {[]map[string]string{machine, service}, pressure.Reading{Memory: 0.95, MemoryStall: 0.01, CPUStall: 0.02}},
		"no limit":                                {[]map[string]string{machine, container, {"sys/fs/cgroup/memory.max": "max\n"}}, pressure.Reading{Memory: 0.5, MemoryStall: 0.125, CPUStall: 0.8}},
		"a name outside the namespace":            {[]map[string]string{container, {"proc/self/cgroup": "0::/../../worker\n"}, machine}, pressure.Reading{Memory: 0.5, MemoryStall: 0.01, CPUStall: 0.02}},
		"version 1, mounted beside version 2":     {[]map[string]string{machine, {"proc/self/cgroup": "4:memory:/a\n0::/\n", "sys/fs/cgroup/unified/cgroup.controllers": ""}}, pressure.Reading{Memory: 0.5, MemoryStall: 0.01, CPUStall: 0.02}},
		"more reclaimable than in use":            {[]map[string]string{container, {"sys/fs/cgroup/memory.current": "5\n"}}, pressure.Reading{MemoryStall: 0.125, CPUStall: 0.8}},
		"no pressure stall information":           {[]map[string]string{{"proc/meminfo": machine["proc/meminfo"]}}, pressure.Reading{Memory: 0.5}},
		"files that say nothing":                  {[]map[string]string{machine, {"proc/pressure/cpu": "", "proc/pressure/memory": "some avg10=?\n"}}, pressure.Reading{Memory: 0.5}},
		"nothing but a processor's":               {[]map[string]string{{"proc/pressure/cpu": machine["proc/pressure/cpu"]}}, pressure.Reading{CPUStall: 0.02}},
		"a limit of 0, which no process survives": {[]map[string]string{machine, container, {"sys/fs/cgroup/memory.max": "0\n"}}, pressure.Reading{Memory: 0.5, MemoryStall: 0.125, CPUStall: 0.8}},
	} {
		root := fstest.MapFS{}
		for _, files := range tc.files {
			for path, text := range files {
				root[path] = &fstest.MapFile{Data: []byte(text)}
			}
		}
		got, err := pressure.From(root).Read()
		if err != nil || !near(got.Memory, tc.want.Memory) || !near(got.MemoryStall, tc.want.MemoryStall) || !near(got.CPUStall, tc.want.CPUStall) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestNothingToRead(t *testing.T) {
	if r, err := pressure.From(fstest.MapFS{}).Read(); err == nil {
		t.Errorf("%+v without an error", r)
	}
}

func TestSystemHasReadings(t *testing.T) {
	r, err := pressure.System().Read()
	if err != nil {
		t.Fatal(err)
	}
	if r.Memory <= 0 || r.Memory > 1.5 || r.MemoryStall < 0 || r.MemoryStall > 1 || r.CPUStall < 0 || r.CPUStall > 1 {
		t.Errorf("%+v", r)
	}
}
