"""The keys that systemd knows in each section, and from which version on: what is not here is ignored with a warning.

Must not: know what a key means (settings does). Upstream: nothing. Downstream: unit.
Source: `systemd --dump-configuration-items` of 252 and 257; NEWS of the versions between and after for the rest.
"""

from functools import cache

OLDEST, NEWEST = 252, 260
SECTIONS = {
    "service": ("Service", "CGROUP", "EXEC", "KILL"),
    "socket": ("Socket", "CGROUP", "EXEC", "KILL"),
    "mount": ("Mount", "CGROUP", "EXEC", "KILL"),
    "swap": ("Swap", "CGROUP", "EXEC", "KILL"),
    "slice": ("Slice", "CGROUP"),
    "scope": ("Scope", "CGROUP", "KILL"),
    "automount": ("Automount",),
    "timer": ("Timer",),
    "path": ("Path",),
    "target": (),
    "device": (),
}

_OF_252 = {
    "CGROUP": """
        AllowedCPUs AllowedMemoryNodes BPFProgram BlockIOAccounting BlockIODeviceWeight BlockIOReadBandwidth
        BlockIOWeight BlockIOWriteBandwidth CPUAccounting CPUQuota CPUQuotaPeriodSec CPUShares CPUWeight
        DefaultMemoryLow DefaultMemoryMin Delegate DeviceAllow DevicePolicy DisableControllers IOAccounting
        IODeviceLatencyTargetSec IODeviceWeight IOReadBandwidthMax IOReadIOPSMax IOWeight IOWriteBandwidthMax
        IOWriteIOPSMax IPAccounting IPAddressAllow IPAddressDeny IPEgressFilterPath IPIngressFilterPath
        ManagedOOMMemoryPressure ManagedOOMMemoryPressureLimit ManagedOOMPreference ManagedOOMSwap MemoryAccounting
        MemoryHigh MemoryLimit MemoryLow MemoryMax MemoryMin MemorySwapMax RestrictNetworkInterfaces Slice
        SocketBindAllow SocketBindDeny StartupAllowedCPUs StartupAllowedMemoryNodes StartupBlockIOWeight
        StartupCPUShares StartupCPUWeight StartupIOWeight TasksAccounting TasksMax
    """,
    "EXEC": """
        AmbientCapabilities AppArmorProfile BindPaths BindReadOnlyPaths CPUAffinity CPUSchedulingPolicy
        CPUSchedulingPriority CPUSchedulingResetOnFork CacheDirectory CacheDirectoryMode CapabilityBoundingSet
        ConfigurationDirectory ConfigurationDirectoryMode CoredumpFilter DynamicUser Environment EnvironmentFile
        ExecPaths ExecSearchPath ExtensionDirectories ExtensionImages Group IOSchedulingClass IOSchedulingPriority
        IPCNamespacePath IgnoreSIGPIPE InaccessibleDirectories InaccessiblePaths KeyringMode LimitAS LimitCORE
        LimitCPU LimitDATA LimitFSIZE LimitLOCKS LimitMEMLOCK LimitMSGQUEUE LimitNICE LimitNOFILE LimitNPROC LimitRSS
        LimitRTPRIO LimitRTTIME LimitSIGPENDING LimitSTACK LoadCredential LoadCredentialEncrypted LockPersonality
        LogExtraFields LogLevelMax LogNamespace LogRateLimitBurst LogRateLimitIntervalSec LogsDirectory
        LogsDirectoryMode MemoryDenyWriteExecute MountAPIVFS MountFlags MountImages NUMAMask NUMAPolicy
        NetworkNamespacePath Nice NoExecPaths NoNewPrivileges OOMScoreAdjust PAMName PassEnvironment Personality
        PrivateDevices PrivateIPC PrivateMounts PrivateNetwork PrivateTmp PrivateUsers ProcSubset ProtectClock
        ProtectControlGroups ProtectHome ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables
        ProtectProc ProtectSystem ReadOnlyDirectories ReadOnlyPaths ReadWriteDirectories ReadWritePaths RemoveIPC
        RestrictAddressFamilies RestrictFileSystems RestrictNamespaces RestrictRealtime RestrictSUIDSGID RootDirectory
        RootHash RootHashSignature RootImage RootImageOptions RootVerity RuntimeDirectory RuntimeDirectoryMode
        RuntimeDirectoryPreserve SELinuxContext SecureBits SetCredential SetCredentialEncrypted SmackProcessLabel
        StandardError StandardInput StandardInputData StandardInputText StandardOutput StateDirectory
        StateDirectoryMode SupplementaryGroups SyslogFacility SyslogIdentifier SyslogLevel SyslogLevelPrefix
        SystemCallArchitectures SystemCallErrorNumber SystemCallFilter SystemCallLog TTYColumns TTYPath TTYReset
        TTYRows TTYVHangup TTYVTDisallocate TemporaryFileSystem TimeoutCleanSec TimeoutSec TimerSlackNSec UMask
        UnsetEnvironment User UtmpIdentifier UtmpMode WorkingDirectory
    """,
    "KILL": """
        FinalKillSignal KillMode KillSignal RestartKillSignal SendSIGHUP SendSIGKILL WatchdogSignal
    """,
    "UNIT": """
        After AllowIsolate AssertACPower AssertArchitecture AssertCPUFeature AssertCPUPressure AssertCPUs
        AssertCapability AssertControlGroupController AssertCredential AssertDirectoryNotEmpty AssertEnvironment
        AssertFileIsExecutable AssertFileNotEmpty AssertFirstBoot AssertGroup AssertHost AssertIOPressure
        AssertKernelCommandLine AssertKernelVersion AssertMemory AssertMemoryPressure AssertNeedsUpdate
        AssertOSRelease AssertPathExists AssertPathExistsGlob AssertPathIsDirectory AssertPathIsEncrypted
        AssertPathIsMountPoint AssertPathIsReadWrite AssertPathIsSymbolicLink AssertSecurity AssertUser
        AssertVirtualization Before BindTo BindsTo CollectMode ConditionACPower ConditionArchitecture
        ConditionCPUFeature ConditionCPUPressure ConditionCPUs ConditionCapability ConditionControlGroupController
        ConditionCredential ConditionDirectoryNotEmpty ConditionEnvironment ConditionFileIsExecutable
        ConditionFileNotEmpty ConditionFirmware ConditionFirstBoot ConditionGroup ConditionHost ConditionIOPressure
        ConditionKernelCommandLine ConditionKernelVersion ConditionMemory ConditionMemoryPressure ConditionNeedsUpdate
        ConditionOSRelease ConditionPathExists ConditionPathExistsGlob ConditionPathIsDirectory
        ConditionPathIsEncrypted ConditionPathIsMountPoint ConditionPathIsReadWrite ConditionPathIsSymbolicLink
        ConditionSecurity ConditionUser ConditionVirtualization Conflicts DefaultDependencies Description
        Documentation FailureAction FailureActionExitStatus IgnoreOnIsolate JobRunningTimeoutSec JobTimeoutAction
        JobTimeoutRebootArgument JobTimeoutSec JoinsNamespaceOf OnFailure OnFailureIsolate OnFailureJobMode OnSuccess
        OnSuccessJobMode PartOf PropagateReloadFrom PropagateReloadTo PropagatesReloadTo PropagatesStopTo
        RebootArgument RefuseManualStart RefuseManualStop ReloadPropagatedFrom Requires RequiresMountsFor
        RequiresOverridable Requisite RequisiteOverridable SourcePath StartLimitAction StartLimitBurst
        StartLimitInterval StartLimitIntervalSec StopPropagatedFrom StopWhenUnneeded SuccessAction
        SuccessActionExitStatus Upholds Wants
    """,
    "INSTALL": """
        Alias Also DefaultInstance RequiredBy WantedBy
    """,
    "SERVICE": """
        BusName ExecCondition ExecReload ExecStart ExecStartPost ExecStartPre ExecStop ExecStopPost ExitType
        FailureAction FileDescriptorStoreMax GuessMainPID NonBlocking NotifyAccess OOMPolicy PIDFile
        PermissionsStartOnly RebootArgument RemainAfterExit Restart RestartForceExitStatus RestartPreventExitStatus
        RestartSec RootDirectoryStartOnly RuntimeMaxSec RuntimeRandomizedExtraSec Sockets StartLimitAction
        StartLimitBurst StartLimitInterval SuccessExitStatus TimeoutAbortSec TimeoutStartFailureMode TimeoutStartSec
        TimeoutStopFailureMode TimeoutStopSec Type USBFunctionDescriptors USBFunctionStrings WatchdogSec
    """,
    "SOCKET": """
        Accept Backlog BindIPv6Only BindToDevice Broadcast DeferAcceptSec DirectoryMode ExecStartPost ExecStartPre
        ExecStopPost ExecStopPre FileDescriptorName FlushPending FreeBind IPTOS IPTTL KeepAlive KeepAliveIntervalSec
        KeepAliveProbes KeepAliveTimeSec ListenDatagram ListenFIFO ListenMessageQueue ListenNetlink
        ListenSequentialPacket ListenSpecial ListenStream ListenUSBFunction Mark MaxConnections
        MaxConnectionsPerSource MessageQueueMaxMessages MessageQueueMessageSize NoDelay PassCredentials PassPacketInfo
        PassSecurity PipeSize Priority ReceiveBuffer RemoveOnStop ReusePort SELinuxContextFromNet SendBuffer Service
        SmackLabel SmackLabelIPIn SmackLabelIPOut SocketGroup SocketMode SocketProtocol SocketUser Symlinks
        TCPCongestion Timestamping Transparent TriggerLimitBurst TriggerLimitIntervalSec Writable
    """,
    "MOUNT": """
        DirectoryMode ForceUnmount LazyUnmount Options ReadWriteOnly SloppyOptions Type What Where
    """,
    "SWAP": """
        Options Priority What
    """,
    "SCOPE": """
        OOMPolicy RuntimeMaxSec RuntimeRandomizedExtraSec TimeoutStopSec
    """,
    "AUTOMOUNT": """
        DirectoryMode ExtraOptions TimeoutIdleSec Where
    """,
    "TIMER": """
        AccuracySec FixedRandomDelay OnActiveSec OnBootSec OnCalendar OnClockChange OnStartupSec OnTimezoneChange
        OnUnitActiveSec OnUnitInactiveSec Persistent RandomizedDelaySec RemainAfterElapse Unit WakeSystem
    """,
    "PATH": """
        DirectoryMode DirectoryNotEmpty MakeDirectory PathChanged PathExists PathExistsGlob PathModified
        TriggerLimitBurst TriggerLimitIntervalSec Unit
    """,
}
_SINCE = {
    253: {
        "CGROUP": "MemoryZSwapMax",
        "SERVICE": "OpenFile ReloadSignal",
        "EXEC": "LogFilterPatterns",
    },
    254: {
        "CGROUP": "DelegateSubgroup MemoryPressureWatch MemoryPressureThresholdSec",
        "EXEC": "MemoryKSM RootEphemeral ImportCredential RootImagePolicy MountImagePolicy ExtensionImagePolicy",
        "SERVICE": "FileDescriptorStorePreserve RestartSteps RestartMaxDelaySec RestartMode",
    },
    255: {
        "CGROUP": "CoredumpReceive NFTSet StartupMemoryLow StartupMemoryHigh StartupMemoryMax StartupMemorySwapMax "
        "StartupMemoryZSwapMax DefaultStartupMemoryLow",
        "EXEC": "SetLoginEnvironment",
        "UNIT": "SurviveFinalKillSignal",
        "SOCKET": "PollLimitIntervalSec PollLimitBurst",
        "INSTALL": "UpheldBy",
    },
    256: {"UNIT": "WantsMountsFor", "CGROUP": "MemoryZSwapWriteback", "SOCKET": "PassFileDescriptorsToExec"},
    257: {
        "CGROUP": "ManagedOOMMemoryPressureDurationSec",
        "EXEC": "BindLogSockets PrivatePIDs",
        "TIMER": "DeferReactivation",
    },
    258: {
        "EXEC": "UserNamespacePath PrivateBPF BPFDelegateCommands BPFDelegateMaps BPFDelegatePrograms "
        "BPFDelegateAttachments StateDirectoryQuota CacheDirectoryQuota LogsDirectoryQuota "
        "StateDirectoryAccounting CacheDirectoryAccounting LogsDirectoryAccounting DelegateNamespaces",
        "SLICE": "ConcurrencyHardMax ConcurrencySoftMax",
        "SOCKET": "AcceptFileDescriptors PassPIDFD DeferTrigger DeferTriggerMaxSec",
        "SERVICE": "ExtraFileDescriptors RefreshOnReload",
    },
    259: {"SERVICE": "ExecReloadPost", "EXEC": "MemoryTHP"},
}
# The settings of cgroup v1 went with it. systemd warns and ignores them (NEWS, 258).
_GONE = {
    258: {
        "CGROUP": "MemoryLimit CPUShares StartupCPUShares BlockIOAccounting BlockIOWeight StartupBlockIOWeight "
        "BlockIODeviceWeight BlockIOReadBandwidth BlockIOWriteBandwidth"
    }
}


@cache
def known(section: str, version: int) -> frozenset[str]:
    """The keys of a section of this name in a version of systemd; none for a section that is not known."""
    groups = [group.upper() for row in SECTIONS.values() if row and row[0] == section for group in row]
    groups = groups or ([section.upper()] if section in ("Unit", "Install") else [])
    keys = {key for group in groups for key in _OF_252.get(group, "").split()}
    for since, added in _SINCE.items():
        if version >= since:
            keys |= {key for group in groups for key in added.get(group, "").split()}
    for since, gone in _GONE.items():
        if version >= since:
            keys -= {key for group in groups for key in gone.get(group, "").split()}
    return frozenset(keys)


def sections(kind: str) -> tuple[str, ...]:
    """The sections that a unit of this type may have."""
    return ("Unit", "Install", *SECTIONS[kind][:1])
