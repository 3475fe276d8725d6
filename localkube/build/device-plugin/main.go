// SPDX-License-Identifier: Apache-2.0
// Copyright: the Muster developers

// Device-plugin is a stand-in for the device plugins of an instance type that a node of localkube rehearses. The kubelet cannot tell it from
// theirs: it offers the devices of its document, and gives a container the device files of those that it was allocated, and no others.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	name     = "muster-rehearsal-device-plugin"
	document = "/etc/muster-rehearsal/devices.json"
	node     = "/node" // where the pod sees the node's /dev
	faults   = "/node/etc/rehearsal-faults.json"
	pause    = time.Second
)

// XIDs that applications cause. NVIDIA's plugin takes any other one for a GPU that does not work.
var harmless = []int{13, 31, 43, 45, 68, 109}

// Resource is one name of extended resources.
type Resource struct {
	Devices  map[string]string // id: device file
	Control  []string          // device files that each container with such a device gets
	Variable string            // of the container's environment: the ids, with commas between

	api.UnimplementedDevicePluginServer
	title string
}

// Document says what the node rehearses; localkube/rehearsal.py writes it.
type Document struct {
	InstanceType string `json:"instance_type"`
	Resources    map[string]*Resource
}

// Fault is one of those that the program muster-rehearsal gave the node.
type Fault struct {
	Fault       string
	Index, Code int
}

// Returns the device files of GPUs that NVIDIA's plugin would report. For a lost GPU the driver reports XID 79.
func lost() (map[string]bool, error) {
	text, err := os.ReadFile(faults)
	if os.IsNotExist(err) {
		return nil, nil
	}
	var have []Fault
	if err == nil {
		err = json.Unmarshal(text, &have)
	}
	found := map[string]bool{}
	for _, each := range have {
		if each.Fault == "gpu_lost" || each.Fault == "xid" && !slices.Contains(harmless, each.Code) {
			found[fmt.Sprintf("/dev/nvidia%d", each.Index)] = true
		}
	}
	return found, err
}

// An unhealthy device leaves the node's allocatable: one whose file is not there, or that the driver reported.
func (each *Resource) list() (*api.ListAndWatchResponse, error) {
	answer := &api.ListAndWatchResponse{}
	gone, err := lost()
	for _, id := range slices.Sorted(maps.Keys(each.Devices)) {
		health := api.Healthy
		if _, err := os.Stat(node + each.Devices[id]); err != nil || gone[each.Devices[id]] {
			health = api.Unhealthy
		}
		answer.Devices = append(answer.Devices, &api.Device{ID: id, Health: health})
	}
	return answer, err
}

func (each *Resource) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (each *Resource) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	sent := ""
	for {
		answer, err := each.list()
		// The file of faults may be half written.
		if said := answer.String(); err == nil && said != sent {
			if err := stream.Send(answer); err != nil {
				return err
			}
			sent = said
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (each *Resource) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		paths := slices.Clone(each.Control)
		for _, id := range container.DevicesIds {
			path, known := each.Devices[id]
			if !known {
				return nil, fmt.Errorf("the node has no %s %s", each.title, id)
			}
			paths = append(paths, path)
		}
		given := &api.ContainerAllocateResponse{Envs: map[string]string{}}
		for _, path := range paths {
			given.Devices = append(given.Devices, &api.DeviceSpec{HostPath: path, ContainerPath: path, Permissions: "rw"})
		}
		if each.Variable != "" {
			given.Envs[each.Variable] = strings.Join(slices.Sorted(slices.Values(container.DevicesIds)), ",")
		}
		log.Printf("gives a container %s %s", each.title, strings.Join(container.DevicesIds, " "))
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

func (each *Resource) socket() string {
	return name + "-" + strings.NewReplacer("/", "-", ".", "-").Replace(each.title) + ".sock"
}

// Serves the resource and tells the kubelet about it.
func (each *Resource) start(server *grpc.Server, kubelet api.RegistrationClient) error {
	path := filepath.Join(api.DevicePluginPath, each.socket())
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	api.RegisterDevicePluginServer(server, each)
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Fatal(err)
		}
	}()
	within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = kubelet.Register(within, &api.RegisterRequest{Version: api.Version, Endpoint: each.socket(), ResourceName: each.title})
	return err
}

func main() {
	text, err := os.ReadFile(document)
	if err != nil {
		log.Fatal(err)
	}
	var have Document
	if err := json.Unmarshal(text, &have); err != nil {
		log.Fatalf("%s: %v", document, err)
	}
	log.SetPrefix("muster rehearsal: ")
	log.SetFlags(log.LstdFlags | log.Lmsgprefix)
	log.Printf("%s is a stand-in for the device plugins of %s; no hardware is behind its devices", name, have.InstanceType)
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	began, err := os.Stat(api.KubeletSocket)
	if err != nil {
		log.Fatal(err)
	}
	for title, each := range have.Resources {
		each.title = title
		if err := each.start(grpc.NewServer(), api.NewRegistrationClient(connection)); err != nil {
			log.Fatalf("%s: %v", title, err)
		}
		log.Printf("offers %d %s", len(each.Devices), title)
	}
	// A kubelet that starts anew forgets its plugins; the pod's next container tells it again.
	for {
		time.Sleep(pause)
		now, err := os.Stat(api.KubeletSocket)
		if err != nil || !os.SameFile(began, now) {
			log.Fatal("the kubelet's socket has changed, so the container starts anew")
		}
	}
}
